"""A group of tensors of one kind and one optimizer: its averages, corrections and forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.optimizers.wrapper import OptimizerWrapper, Options
from hybrid_predict.policy.policy import Key
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.shards import Counts, whole
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta
from hybrid_predict.tensors.lists import upcast
from hybrid_predict.tensors.shapes import as_matrix
from hybrid_predict.updates.base import AVERAGE, AbstractUpdate, UpdateState, moving_decay
from hybrid_predict.updates.correct import Correction, correction
from hybrid_predict.updates.length import usual_length
from hybrid_predict.updates.masks import (
    either,
    optimizer_only,
    unmoved,
    usable_gradients,
    without_gradient,
)

if TYPE_CHECKING:
    from hybrid_predict.forecast.forecaster import Forecaster
    from hybrid_predict.forecast.predictors import Predictor
    from hybrid_predict.policy.confidence import Window
    from hybrid_predict.policy.predicting import Part
    from hybrid_predict.ranks.owners import Owners

REST_STEPS = 64
"""Number of full steps for which a group that a full step did not update is not predicted."""


@final
class Treatment(NamedTuple):
    """How a group of tensors is treated; its momentum is that of the optimizer, in [0, 1)."""

    kind: str
    optimizer: int  # its number
    update: AbstractUpdate | None
    predictor: Predictor | None
    history: str  # type in which averages are stored
    momentum: float = 0.0
    short: bool = False  # whether the first windows of displacements are short

    def key(self) -> list[Any]:
        """Return the values in which a saved group and the group that loads it must agree."""
        return [self.kind, self.optimizer, repr(self.update), repr(self.predictor)]


@final
@dataclass
class OpenUpdate:
    """Values that a group stores right before an update."""

    members: list[int]  # positions of the tensors that have a gradient
    before: list[Tensor]  # weights before the update
    usable: Tensor | None  # which gradients are usable; None if all are
    zeros: dict[int, Tensor | None]  # masks of entries whose own gradient is exactly zero
    correction: Correction | None  # of the tensors whose turn it is
    corrects: bool  # whether tensors are corrected now, in this full step or another


@final
class Group:
    """Tensors of one kind and one optimizer that are corrected, predicted, or both.

    What is kept between full steps is allocated when it is first needed.
    """

    def __init__(
        self, treatment: Treatment, names: Sequence[str], parameters: Sequence[Tensor]
    ) -> None:
        self.treatment = treatment
        self.names = tuple(names)
        self._period: int | None = 1
        self._turns = [0] * len(names)
        self._seen = [0] * len(names)  # updates of each tensor in which it had a gradient
        self._peaks = [0.0] * len(names)  # largest rates in these
        self._checked = False  # whether the ranks are known to have the same weights
        self._rest = 1  # full steps that have to update the group before it is predicted
        self.average: list[Tensor] = []  # of gradients
        self.carries: list[Tensor] = []  # rounding errors of 16-bit weights
        self.owners: Owners | None = None  # ranks with the arrays of the update
        self._update: UpdateState | None = None
        self.forecaster: Forecaster | None = None
        self._local: list[Tensor] = []
        self._places: list[int] = []
        self.follow(parameters)

    def holds(
        self, treatment: Treatment, names: Sequence[str], parameters: Sequence[Tensor]
    ) -> bool:
        """Return whether these are names, shapes and treatment of the group."""
        shapes = [p.shape for p in parameters] == [p.shape for p in self.parameters]
        return shapes and self.names == tuple(names) and self.treatment == treatment

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """Take other tensors in place of the parameters, and keep everything known about them."""
        self.parameters = list(parameters)
        self._keys = [*map(id, parameters)]
        self._usual = [usual_length(as_matrix(shards.form(p).shape)[0]) for p in parameters]
        self.release()
        self._sharded = any(shards.placement(p) is not None for p in parameters)
        self._counts = shards.norm_factors(self.parameters)

    def _allocate(self) -> None:
        if self.average:
            return
        self.owners = self._owners
        treatment = self.treatment
        history = treatment.history
        values = [shards.local(p) for p in self.parameters]
        half = any(x.dtype in lists.HALF for x in values)
        self.average = lists.zeros(values, history)
        self.carries = lists.zeros(values) if half else []
        if treatment.update is not None:
            self._update = _update_state(treatment.update, self.parameters, history, self.owners)
        if treatment.predictor is not None:
            # Runs without predicted steps import nothing about forecasts.
            from hybrid_predict.forecast.forecaster import Forecaster
            from hybrid_predict.policy.confidence import window_length

            self.forecaster = Forecaster(
                treatment.predictor,
                self.names,
                self.parameters,
                history,
                window_length(treatment.momentum),
                short=treatment.short,
            )

    @property
    def _owners(self) -> Owners | None:
        """The rank that owns each tensor; None for a single rank, and without an update."""
        update = self.treatment.update
        if update is None or processes.size() == 1:
            return None
        # A process that trains alone imports nothing about owners.
        from hybrid_predict.ranks.owners import Owners

        forms = [shards.form(p) for p in self.parameters]
        work = [update.operations([x], 1) + x.numel() for x in forms]
        return Owners.by_work(self.parameters, work, self.treatment.optimizer)

    def _arrays(self) -> dict[str, list[Tensor]]:
        """Return lists of local shards by name, as in a saved state."""
        arrays = {"average": self.average, "carry": self.carries}
        if self.forecaster is not None:
            arrays["history.drift"] = self.forecaster.drift
        return arrays

    def owned(self) -> dict[str, list[Tensor]]:
        """Return lists of whole tensors that each owner has, named as in a saved state."""
        arrays = self._update.arrays if self._update is not None else {}
        return {f"update.{name}": values for name, values in arrays.items()}

    def _fetch(self, value: Tensor, k: int, tensor: Tensor) -> Tensor:
        """Return a tensor of :meth:`owned` on every rank; all of them have to call it."""
        return value if self.owners is None else self.owners.fetch(value, k, tensor)

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps now."""
        held = [x for each in (self.average, self.carries, *self.owned().values()) for x in each]
        held += [] if self.forecaster is None else self.forecaster.held
        return sum(x.nbytes for x in held if not x.is_meta)

    def part(self) -> Part:
        """Return what the policy has to know, as it is now."""
        from hybrid_predict.policy.confidence import window_length
        from hybrid_predict.policy.predicting import Part

        predictor = self.treatment.predictor
        assert predictor is not None
        return Part(
            *self.treatment[:2],
            size=sum(shards.form(p).numel() for p in self.parameters),
            window=window_length(self.treatment.momentum),
            decay=moving_decay(self.treatment.update, self._period, self.treatment.momentum),
            gated=predictor.gated,
            fits=predictor.fitted,
            resting=self.resting,
        )

    def open(
        self, optimizer: OptimizerWrapper, options: Mapping[int, Options], *, correct: bool
    ) -> OpenUpdate | None:
        """Average the gradients and find the corrected directions, right before an update.

        ``options`` are by ``id``, and ``correct`` is whether the tensors whose turn it is are
        corrected. Return what :meth:`close` needs; None if no tensor has a gradient.
        """
        held = {*map(id, shards.having_gradients(self.parameters))} & options.keys()
        members = [k for k, key in enumerate(self._keys) if key in held]
        if not members:
            return None
        self._allocate()
        if self.owners is not None and not self._checked:
            self.owners.check_equal(self.parameters)
        self._checked = True
        values = self._values()
        chosen = [self.parameters[k] for k in members]
        own = [options[self._keys[k]] for k in members]
        gradients = optimizer.gradients(self.treatment.optimizer, chosen, own)
        if self._sharded:  # FSDP1 flattens gradients
            pairs = zip(gradients, members, strict=True)
            gradients = [g.reshape(values[k].shape) for g, k in pairs]
        zeros: dict[int, Tensor | None] = {}
        if self.treatment.kind != "embedding":  # many rows of a table have no gradient in any batch
            zeros = dict(zip(members, without_gradient(chosen, gradients, own), strict=True))
        update = self.treatment.update
        average = [self.average[k] for k in members]
        counts = self._counts_of(members)
        corrects = correct and update is not None
        turn = self._turn(members) if corrects else []
        rates = [*map(abs, [each.rate for each in own])]
        for k, rate in zip(members, rates, strict=True):
            self._seen[k] += 1
            if rate > self._peaks[k]:
                self._peaks[k] = rate
        if turn:
            lengths = lists.norms([*gradients, *average])
            norms, cosines = lists.cosines(*whole(lengths, lists.dots(gradients, average), counts))
        else:
            lengths = lists.norms(gradients)
            norms, _ = whole(lengths, lengths[:0], counts)
        gradients, usable = usable_gradients(gradients, average, norms)
        lists.average(average, gradients, AVERAGE if update is None else update.decay)
        corrected = None
        if turn:
            if len(turn) < len(members):
                angles = cosines.unbind()  # one operation, where each index would be one
                cosines = torch.stack([angles[at] for at in turn])
            due = [members[at] for at in turn]
            falls = [self._peaks[members[at]] / (rates[at] or math.inf) for at in turn]
            corrected = self._correction(due, falls, [gradients[at] for at in turn], cosines)
        return OpenUpdate(members, lists.clones(values), usable, zeros, corrected, corrects)

    def _correction(
        self, due: list[int], falls: list[float], gradients: list[Tensor], cosines: Tensor
    ) -> Correction:
        assert self.treatment.update is not None and self._update is not None
        self._update.period = self._period or 1
        return correction(
            self.treatment.update,
            self._update,
            due,
            [self.average[k] for k in due],
            gradients,
            cosines,
            {self.names[k]: self.parameters[k] for k in due},
            [fall / self._usual[k] for fall, k in zip(falls, due, strict=True)],
            self.owners,
        )

    def _turn(self, members: Sequence[int]) -> list[int]:
        """Return the places in ``members`` of those whose turn it is, by their updates so far.

        Full steps would not do: some tensors have a gradient in every second one.
        """
        period = self._period
        if period is None:
            return []
        places = enumerate(members)
        return [at for at, k in places if self._seen[k] % period == self._turns[k]]

    def close(
        self, update: OpenUpdate, options: Mapping[int, Options], movement: WeightDelta | None
    ) -> tuple[list[Tensor], list[tuple[Key, Callable[..., Window], Tensor]]]:
        """Correct the update that was just made, and learn its displacement.

        Return the slopes of the predicted ``movement`` that it verifies, if any; and a window that
        has closed, by kind and optimizer, see `Forecaster.learn`.
        """
        values = self._values()
        own = [options[key] for key in self._keys]
        masks = optimizer_only(self.average, update.members, update.usable, update.zeros)
        frozen: list[Tensor | None] = [None] * len(values)
        for k, zero in update.zeros.items():
            if zero is not None:
                frozen[k] = unmoved(values[k], update.before[k], own[k], zero, masks[k])
                masks[k] = either(masks[k], frozen[k])
        if (corrected := update.correction) is not None:
            counts = self._counts_of(corrected.members)
            corrected.write(values, update.before, own, masks, self.carries, counts)
        rates = [each.rate for each in own]
        rate = max(map(abs, rates))
        if self.forecaster is None or not rate > 0:
            return [], []
        moved = [upcast(x) for x in update.before] if self.carries else list(update.before)
        torch._foreach_sub_(moved, list(values))
        torch._foreach_mul_(moved, [-1.0 / rate if rate else 0.0 for rate in rates])
        # A displacement by a gradient that is not finite would stay in the drift.
        lists.clear(moved, masks)
        slopes = []
        if movement is not None:
            known = self.average, moved, rates, self._counts
            slopes = self.forecaster.slopes(movement, *known)
        closed = self.forecaster.learn(moved, rate, frozen, self._counts)
        return slopes, [(self.treatment[:2], *window) for window in closed]

    def count_full_step(self, updated: Collection[int]) -> None:
        """Note whether a full step has updated the group, by ``id`` of all that it has updated."""
        found = not {*self._keys}.isdisjoint(updated)
        self._rest = max(0, self._rest - 1) if found else REST_STEPS

    @property
    def resting(self) -> bool:
        """Whether it is new, did not move yet, or was not updated in one of the last full steps."""
        return self._rest > 0 or self.forecaster is None or self.forecaster.count == 0

    def rates(self, options: Mapping[int, Options]) -> list[float]:
        """Return the learning rate of each tensor."""
        return [options[key].rate for key in self._keys]

    def work(self, period: int) -> list[tuple[int, int]]:
        """Return for each tensor the rank that finds its direction, and the operations of that."""
        update = self.treatment.update
        forms = map(shards.form, self.parameters)
        owners = self._owners
        ranks_of = [0] * len(self.names) if owners is None else owners.ranks
        operations = [update.operations([x], period) if update else 0 for x in forms]
        return list(zip(ranks_of, operations, strict=True))

    def set_period(self, period: int | None, turns: Sequence[int]) -> None:
        """Correct each tensor in its turn of so many full steps; None for no correction."""
        self._period = period
        self._turns = list(turns)

    def inherit(self, other: Group) -> None:
        """Copy the state of tensors that were in another group with the same treatment.

        Every rank has to call it, as owners may change.
        """
        if other.treatment != self.treatment or not other.average:
            return
        places = {name: k for k, name in enumerate(other.names)}
        pairs = [(k, places[name]) for k, name in enumerate(self.names) if name in places]
        self._allocate()
        self._rest = max(other._rest, int(len(pairs) < len(self.names)))
        known = {**other._arrays(), **other.owned()}
        owned = self.owned()
        for name, arrays in {**self._arrays(), **owned}.items():
            for k, source in pairs if arrays and known[name] else ():
                value = known[name][source]
                if arrays[k].shape == value.shape:
                    whole = name in owned
                    value = other._fetch(value, source, self.parameters[k]) if whole else value
                    arrays[k].copy_(value)
        if self.forecaster is not None and other.forecaster is not None:
            self.forecaster.inherit(other.forecaster, pairs)
        for k, source in pairs:
            self._seen[k] = other._seen[source]
            self._peaks[k] = other._peaks[source]

    def state_dict(self, *, whole: bool = True) -> dict[str, Any] | None:
        """Return counts, numbers and arrays.

        With ``whole`` every rank has to call it for full tensors, and arrays of other owners; of
        sharded ones rank 0 gets them on its host, the others None. Else each gets what it has.
        """
        self._allocate()
        own = self.forecaster.state_dict() if self.forecaster is not None else {}
        window = own.get("window")
        state = {
            "key": self.treatment.key(),
            "names": list(self.names),
            "layouts": [shards.layout(p) for p in self.parameters],
            "rest": self._rest,
            "seen": list(self._seen),
            "peaks": list(self._peaks),
            "count": own.get("count", 0),
        }
        arrays = self._arrays()
        owned = self.owned()
        if not whole:
            return {**state, **arrays, **owned, "windows": [window]}
        tensors = self.parameters
        for name, values in owned.items():
            pairs = enumerate(zip(values, tensors, strict=True))
            owned[name] = [self._fetch(value, k, tensor) for k, (value, tensor) in pairs]
        windows = [window]
        if self._sharded:
            windows = processes.gather(window)  # the samples of local shards differ between ranks
            arrays = {name: shards.on_host(each, tensors) for name, each in arrays.items()}
            if processes.rank() > 0:
                return None
            owned = {name: [x.cpu() for x in each] for name, each in owned.items()}
        return {**state, **arrays, **owned, "windows": windows}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, gathered or local."""
        self._allocate()
        for name, targets in {**self._arrays(), **self.owned()}.items():
            for k, (target, source) in enumerate(zip(targets, saved[name], strict=True)):
                part = source
                if target.shape != source.shape:
                    part = shards.local_shard(source, self.parameters[k])
                if target.shape != part.shape:
                    raise ValueError(f"{name} has shape {tuple(source.shape)}")
                target.copy_(part)
        if self.forecaster is not None:
            alike = saved["layouts"] == [shards.layout(p) for p in self.parameters]
            windows = saved["windows"] if alike else []  # samples are of local shards
            self.forecaster.load_state_dict(saved["count"], windows, self.parameters)
        self._rest = saved["rest"]
        self._seen = list(saved["seen"])
        self._peaks = list(saved["peaks"])

    def _values(self) -> list[Tensor]:
        """Local shards of the tensors, found anew where one has moved to other memory."""
        places = [*map(Tensor.data_ptr, self.parameters)]
        if self._sharded or places != self._places:
            self._places = places
            self._local = [shards.local(p) for p in self.parameters]
        return self._local

    def release(self) -> None:
        """Let go of the weights, which would stay in memory with the engine."""
        self._local = []
        self._places = []

    def _counts_of(self, members: Sequence[int]) -> Counts:
        # Of tensors that are not sharded, every rank has all sums.
        counts = self._counts if self._sharded else None
        return None if counts is None else [counts[k] for k in members]


def _update_state(
    update: AbstractUpdate, tensors: Sequence[Tensor], history: str, owners: Owners | None
) -> UpdateState:
    like = [shards.form(p).detach() for p in tensors]
    if owners is None:
        return update.init(like, history)
    # One by one, so that a rank does not hold what others own, not even for a moment.
    together: dict[str, list[Tensor]] = {}
    for x, owner in zip(like, owners.ranks, strict=True):
        for name, (array,) in update.init([x], history).arrays.items():
            elsewhere = owner != processes.rank()
            together.setdefault(name, []).append(array.to("meta") if elsewhere else array)
    return UpdateState(together)
