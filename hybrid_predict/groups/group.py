"""A group of tensors of one kind and one optimizer: its averages, corrections and forecasts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.groups.memory import Memory, Treatment
from hybrid_predict.optimizers.wrapper import OptimizerWrapper, Options
from hybrid_predict.policy.confidence import window_length
from hybrid_predict.policy.policy import Key, Part
from hybrid_predict.ranks import owners, processes, shards, sums
from hybrid_predict.ranks.sums import Counts
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta
from hybrid_predict.tensors.lists import upcast
from hybrid_predict.updates.base import AVERAGE, moving_decay
from hybrid_predict.updates.correct import Correction, correction
from hybrid_predict.updates.masks import (
    either,
    optimizer_only,
    unmoved,
    usable_gradients,
    without_gradient,
)

REST_STEPS = 64
"""Number of full steps for which a group that a full step did not update is not predicted."""


@final
@dataclass
class OpenUpdate:
    """Values that a group stores right before an update."""

    members: list[int]  # positions of the tensors that have a gradient
    before: list[Tensor]  # weights before the update
    usable: Tensor | None  # which gradients are usable; None if all are
    still: dict[int, Tensor | None]  # masks of entries whose own gradient is exactly zero
    correction: Correction | None  # of the tensors whose turn it is
    corrects: bool  # whether tensors are corrected now, in this full step or another


@final
class Group:
    """Tensors of one kind and one optimizer that are corrected, predicted, or both.

    Averages are stored in the type ``history``, and ``momentum`` is that of the optimizer, in
    [0, 1).
    """

    def __init__(
        self,
        treatment: Treatment,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        history: str,
        momentum: float = 0.0,
    ) -> None:
        self.treatment = treatment
        self.names = tuple(names)
        self._type = history
        self._momentum = momentum
        self._period: int | None = 1
        self._turns = [0] * len(names)
        self._seen = [0] * len(names)  # updates of each tensor in which it had a gradient
        self._peaks = [0.0] * len(names)  # largest rates in these
        self._checked = False  # whether the ranks are known to have the same weights
        self._rest = 1  # full steps that have to update the group before it is predicted
        self._local: list[Tensor] = []
        self._places: list[int] = []
        self.follow(parameters)

    def holds(
        self,
        treatment: Treatment,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        momentum: float,
    ) -> bool:
        """Return whether these are names, shapes, treatment and momentum of the group."""
        shapes = [p.shape for p in parameters] == [p.shape for p in self.parameters]
        alike = self.treatment == treatment and self._momentum == momentum
        return shapes and self.names == tuple(names) and alike

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """Take other tensors in place of the parameters, and keep everything known about them."""
        self.parameters = list(parameters)
        self.release()
        self._sharded = shards.any_sharded(self.parameters)

    @cached_property
    def memory(self) -> Memory:
        """Arrays that are kept between full steps; allocated when first needed."""
        about = self.treatment, self.names, self.parameters, self._type, self._momentum
        return Memory(*about, self._owners)

    def _checked_memory(self) -> Memory:
        if self.memory.owners is not None and not self._checked:
            owners.check_equal(self.parameters)
        self._checked = True
        return self.memory

    @property
    def allocated(self) -> Memory | None:
        """The memory; None before it is needed."""
        return self.__dict__.get("memory")

    @property
    def _owners(self) -> list[int] | None:
        """The rank that owns each tensor; None for a single rank, and without an update."""
        update = self.treatment.update
        if update is None or processes.size() == 1:
            return None
        forms = [shards.form(p) for p in self.parameters]
        work = [update.operations([x], 1) + x.numel() for x in forms]
        return owners.owners(self.parameters, work, self.treatment.optimizer)

    def part(self) -> Part:
        """Return what the policy has to know, as it is now."""
        predictor = self.treatment.predictor
        assert predictor is not None
        return Part(
            *self.treatment[:2],
            size=sum(shards.form(p).numel() for p in self.parameters),
            window=window_length(self._momentum),
            decay=moving_decay(self.treatment.update, self._period, self._momentum),
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
        members = [k for k, key in enumerate(map(id, self.parameters)) if key in held]
        if not members:
            return None
        update = self.treatment.update
        memory = self._checked_memory()
        values = self._values()
        chosen = [self.parameters[k] for k in members]
        settings = [options[key] for key in map(id, self.parameters)]
        own = [settings[k] for k in members]
        gradients = optimizer.gradients(self.treatment.optimizer, chosen, own)
        if self._sharded:  # FSDP1 flattens gradients
            pairs = zip(gradients, members, strict=True)
            gradients = [g.reshape(values[k].shape) for g, k in pairs]
        still: dict[int, Tensor | None] = {}
        if self.treatment.kind != "embedding":  # many rows of a table have no gradient in any batch
            still = dict(zip(members, without_gradient(chosen, gradients, own), strict=True))
        average = [memory.average[k] for k in members]
        counts = self._counts(chosen)
        corrects = correct and update is not None
        turn = [at for at, k in enumerate(members) if corrects and self._due(k)]
        for k in members:
            self._seen[k] += 1
            self._peaks[k] = max(self._peaks[k], abs(settings[k].rate))
        if turn:
            norms, cosines = sums.angles(gradients, average, counts)
        else:
            norms = sums.norms(gradients, counts)
        gradients, usable = usable_gradients(gradients, average, norms)
        lists.average(average, gradients, AVERAGE if update is None else update.decay)
        corrected = None
        if turn and update is not None and memory.update is not None:
            angles = cosines.unbind()  # one operation, where each index would be one
            memory.update.period = self._period or 1
            due = [members[at] for at in turn]
            corrected = correction(
                update,
                memory.update,
                due,
                [average[at] for at in turn],
                [gradients[at] for at in turn],
                torch.stack([angles[at] for at in turn]),
                {self.names[k]: self.parameters[k] for k in due},
                [self._peaks[k] / (abs(settings[k].rate) or math.inf) for k in due],
                None if memory.owners is None else [memory.owners[k] for k in due],
            )
        return OpenUpdate(members, lists.clones(values), usable, still, corrected, corrects)

    def _due(self, k: int) -> bool:
        """Return whether it is a tensor's turn to be corrected, by its updates so far.

        Full steps would not do: some tensors have a gradient in every second one.
        """
        return self._period is not None and self._seen[k] % self._period == self._turns[k]

    def close(
        self, update: OpenUpdate, options: Mapping[int, Options], movement: WeightDelta | None
    ) -> tuple[list[Tensor], list[tuple[Key, int, Tensor]]]:
        """Correct the update that was just made, and learn its displacement.

        Return the slopes of the predicted ``movement`` that it verifies, if any; and kind and
        optimizer, steps and numbers of a window that has closed, see `Window.close`.
        """
        with torch.no_grad():
            values = self._values()
            own = [options[key] for key in map(id, self.parameters)]
            memory = self.memory
            only = optimizer_only(memory.average, update.members, update.usable, update.still)
            still: list[Tensor | None] = [None] * len(values)
            for k, zero in update.still.items():
                if zero is not None:
                    still[k] = unmoved(values[k], update.before[k], own[k], zero, only[k])
            masks = list(map(either, only, still))
            if (corrected := update.correction) is not None:
                counts = self._counts([self.parameters[k] for k in corrected.members])
                corrected.write(values, update.before, own, masks, memory.carries, counts)
            return self._learn(update.before, values, own, masks, still, movement)

    def _learn(
        self,
        before: Sequence[Tensor],
        values: Sequence[Tensor],
        own: Sequence[Options],
        masks: Sequence[Tensor | None],
        still: Sequence[Tensor | None],
        movement: WeightDelta | None,
    ) -> tuple[list[Tensor], list[tuple[Key, int, Tensor]]]:
        forecaster = self.memory.forecaster
        if forecaster is None:
            return [], []
        rates = [each.rate for each in own]
        rate = max(map(abs, rates))
        if not rate > 0:
            return [], []
        moved = [upcast(x) for x in before]
        torch._foreach_sub_(moved, list(values))
        torch._foreach_mul_(moved, [-1.0 / rate if abs(rate) > 0 else 0.0 for rate in rates])
        # A displacement by a gradient that is not finite would stay in the drift.
        lists.clear(moved, masks)
        counts = shards.norm_factors(self.parameters)
        slopes = []
        if movement is not None:
            slopes = forecaster.slopes(movement, self.memory.average, moved, rates, counts)
        closed = forecaster.learn(moved, rate, still, counts)
        return slopes, [] if closed is None else [(self.treatment[:2], *closed)]

    def count_full_step(self, updated: Collection[int]) -> None:
        """Note whether a full step has updated the group, by ``id`` of all that it has updated."""
        found = not {*map(id, self.parameters)}.isdisjoint(updated)
        self._rest = max(0, self._rest - 1) if found else REST_STEPS

    @property
    def resting(self) -> bool:
        """Whether it is new, did not move yet, or was not updated in one of the last full steps."""
        return self._rest > 0 or not self._moved

    @property
    def _moved(self) -> bool:
        forecaster = getattr(self.allocated, "forecaster", None)
        return forecaster is not None and forecaster.moved

    def forecast(self, options: Mapping[int, Options]) -> tuple[WeightDelta, list[Tensor]] | None:
        """Forecast the movement of one predicted step; None before the first displacement.

        With it comes how far the drift of each tensor moves at the same learning rate.
        """
        if not self._moved:
            return None
        assert self.memory.forecaster is not None
        like = self._values() if self._sharded else self.parameters
        rates = [options[id(p)].rate for p in self.parameters]
        return self.memory.forecaster.forecast(rates, like)

    def rate(self, options: Mapping[int, Options]) -> float:
        """Return the largest learning rate of its tensors."""
        return max(abs(options[id(p)].rate) for p in self.parameters)

    def work(self, period: int) -> list[tuple[int, int]]:
        """Return for each tensor the rank that finds its direction, and the operations of that."""
        update = self.treatment.update
        forms = map(shards.form, self.parameters)
        ranks_of = self._owners or [0] * len(self.names)
        operations = [update.operations([x], period) if update else 0 for x in forms]
        return list(zip(ranks_of, operations, strict=True))

    def set_period(self, period: int | None, turns: Sequence[int]) -> None:
        """Correct each tensor in its turn of so many full steps; None for no correction."""
        self._period = period
        self._turns = list(turns)

    def inherit(self, other: Group) -> None:
        """Copy the state of tensors that were in another group with the same treatment."""
        if other.treatment != self.treatment or other.allocated is None:
            return
        places = {name: k for k, name in enumerate(other.names)}
        pairs = [(k, places[name]) for k, name in enumerate(self.names) if name in places]
        self._rest = max(other._rest, int(len(pairs) < len(self.names)))
        self.memory.inherit(other.memory, pairs, self.parameters)
        for k, source in pairs:
            self._seen[k] = other._seen[source]
            self._peaks[k] = other._peaks[source]

    def state_dict(self, *, whole: bool = True) -> dict[str, Any] | None:
        """Return the state of the group; see `Memory.save`."""
        saved = self.memory.save(self.parameters, whole=whole)
        entries = {
            "key": self.treatment.key(),
            "names": list(self.names),
            "rest": self._rest,
            "seen": list(self._seen),
            "peaks": list(self._peaks),
        }
        return None if saved is None else {**entries, **saved}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, gathered or local."""
        self.memory.load(saved, self.parameters)
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

    def _counts(self, tensors: Sequence[Tensor]) -> Counts:
        return shards.norm_factors(tensors) if self._sharded else None
