"""Tensors of one kind and one optimizer that are corrected, predicted, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.errors import CheckpointError, PredictorError
from hybrid_predict.forecast.masks import optimizer_only, usable_gradients
from hybrid_predict.forecast.plan import Plan
from hybrid_predict.forecast.predictors.contract import check_delta, check_form
from hybrid_predict.forecast.slopes import slopes
from hybrid_predict.forecast.window import Reading, Window, window_length
from hybrid_predict.model.deltas import WeightDelta, write
from hybrid_predict.model.optimizer import OptimizerWrapper, Options
from hybrid_predict.tensors import ShardedBackend, TorchBackend, is_half, ranks, shards, upcast
from hybrid_predict.tensors.torch import per_rate
from hybrid_predict.updates import AbstractUpdate

AVERAGE = 0.95
"""Decay of averaged gradients where no update asks for another."""


@final
@dataclass
class _PendingUpdate:
    """What is stored between the hooks before and after an update."""

    members: list[int]
    before: list[Tensor]
    usable: Tensor | None
    directions: list[Tensor] = field(default_factory=list)


@final
class TensorGroup:
    """Corrects and forecasts a group of tensors: averages gradients, learns displacements.

    Memory between full steps: the averaged gradients, and the state of update and predictor. Memory
    during an update: a copy of the weights, and the corrected directions.

    Args:
        plan: How the tensors are treated.
        names: Names of the K parameters.
        parameters: The K parameters.
        history: Type in which averages are stored.
        momentum: Momentum coefficient of the optimizer, in [0, 1).
    """

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        history: str,
        momentum: float = 0.0,
    ) -> None:
        self.plan = plan
        self.names = tuple(names)
        self.parameters = list(parameters)
        self._history = history
        values = self._values()
        backend = self._backend(range(len(values)))
        self.average = backend.zeros(values)
        self.carry = backend.zeros(values, "float32") if any(map(is_half, values)) else []
        update, predictor = plan.update, plan.predictor
        self.update_state = update.init(values, backend) if update else None
        self.history_state = predictor.init(names, values, backend) if predictor else None
        self._window = Window(window_length(momentum), values) if predictor else None
        self._pending: _PendingUpdate | None = None
        self._closed_window: tuple[int, Tensor] | None = None
        self.slopes: list[Tensor] = []  # of the verifying update just made

    def before_update(
        self,
        optimizer: OptimizerWrapper,
        options: Mapping[int, Options],
        good: Tensor | bool,
        *,
        correct: bool,
    ) -> None:
        """Average the gradients and compute the corrected directions, right before the update.

        Args:
            optimizer: The optimizers.
            options: How each parameter is updated, by ``id``.
            good: Whether the update will happen; if not, the averages do not change.
            correct: Whether to correct the update.
        """
        members = [k for k, p in enumerate(self.parameters) if p.grad is not None]
        if not members:
            return
        chosen = [self.parameters[k] for k in members]
        backend, values = self._backend(members), self._values()
        gradients = [
            optimizer.gradient(self.plan.owner, p, options[id(p)]).reshape(values[k].shape)
            for k, p in zip(members, chosen, strict=True)
        ]
        average = [self.average[k] for k in members]
        update = self.plan.update if correct else None
        angles = backend.angles(gradients, average) if update else None
        norms, cosines = angles or (backend.norms(gradients), None)
        gradients, usable = usable_gradients(gradients, average, norms, good)
        decay = self.plan.update.decay if self.plan.update else AVERAGE
        average = backend.average(average, gradients, decay)
        directions: list[Tensor] = []
        if update and self.update_state is not None:
            directions = update.direction(
                self.update_state, members, average, gradients, cosines, backend
            )
            self._check_directions(update, directions, members)
        for k, value in zip(members, average, strict=True):
            self.average[k] = value
        self._pending = _PendingUpdate(members, [v.clone() for v in values], usable, directions)

    def after_update(
        self,
        options: Mapping[int, Options],
        good: Tensor | bool,
        bound: float | None,
        movement: WeightDelta | None = None,
    ) -> bool:
        """Correct the update that was just made, and learn its displacement.

        Args:
            options: How each parameter is updated, by ``id``.
            good: Whether the update has happened.
            bound: Largest length of a corrected update in lengths of the optimizer's update,
                besides the bound of the update itself; None for no further bound.
            movement: The predicted movement that the update verifies, if any.

        Returns:
            Whether any update was corrected.
        """
        pending, self._pending = self._pending, None
        if pending is None or good is False:
            return False
        with torch.no_grad():
            masks = optimizer_only(self.average, pending.members, pending.usable, good)
            if pending.directions:
                self._correct(options, bound, pending, masks)
            if self.plan.predictor is not None:
                self._learn(options, pending, masks, movement)
        return bool(pending.directions)

    def discard_update(self) -> None:
        """Discard an update that was not finished."""
        self._pending = self._closed_window = None
        self.slopes = []

    def pop_window(self) -> list[tuple[list[Any], Tensor]]:
        """Return tag and numbers of the window that was just closed, as a list of one pair or none.

        The pair can be read with :func:`hybrid_predict.forecast.window.reading`.
        """
        closed, self._closed_window = self._closed_window, None
        if closed is None or self._window is None:
            return []
        steps, numbers = closed
        fitted = len(self._directions())
        tag = [self.plan.kind, self.plan.owner, list(self.names), steps, fitted]
        return [(tag, numbers)]

    def operations(self, block: int | None) -> int:
        """Return the operations of the directions in a full step, with ``block`` rows at a time."""
        update, values = self.plan.update, self._values()
        backend = self._backend(range(len(values)))
        return update.operations(values, backend, block) if update else 0

    def set_block(self, block: int | None) -> None:
        """Treat at most ``block`` rows of a matrix together from now on; None for all."""
        if self.update_state is not None:
            self.update_state.block = block

    def fit(self, reading: Reading) -> float:
        """Fit the predictor to a window of these tensors.

        Returns:
            The squared length of the next forecast, per unit of the learning rate.
        """
        predictor, state = self.plan.predictor, self.history_state
        assert predictor is not None and state is not None
        predictor.fit(state, reading)
        return predictor.square(state, reading)

    @property
    def window_length(self) -> int:
        """Number of displacements in a window; 0 without a predictor."""
        return self._window.length if self._window is not None else 0

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps."""
        kept = sum(x.nbytes for arrays in self._arrays().values() for x in arrays)
        return kept + (self._window.held_bytes if self._window is not None else 0)

    def _directions(self) -> list[list[Tensor]]:
        predictor, state = self.plan.predictor, self.history_state
        return predictor.directions(state) if predictor and state else []

    def forecast(self, options: Mapping[int, Options]) -> WeightDelta | None:
        """Forecast the movement of one predicted step; None before the first displacement.

        Raises:
            PredictorError: If the predictor returns a forecast of the wrong form.
        """
        predictor, state = self.plan.predictor, self.history_state
        if predictor is None or state is None or not state.count:
            return None
        return self._forecast([options[id(p)].rate for p in self.parameters])

    def drift_lengths(self, options: Mapping[int, Options]) -> list[Tensor]:
        """Return how far the drift of each tensor moves at the current learning rate, 0-dim."""
        assert self._window is not None
        rates = [options[id(p)].rate for p in self.parameters]
        return [rate * norm for rate, norm in zip(rates, self._window.norms(), strict=True)]

    def _correct(
        self,
        options: Mapping[int, Options],
        bound: float | None,
        pending: _PendingUpdate,
        masks: Sequence[Tensor | None],
    ) -> None:
        update, state = self.plan.update, self.update_state
        assert update is not None and state is not None
        members, backend = pending.members, self._backend(pending.members)
        chosen = [self.parameters[k] for k in members]
        values = [shards.local(p) for p in chosen]
        before = [pending.before[k] for k in members]
        kept = [1.0 - options[id(p)].shrink for p in chosen]
        own = backend.distances(values, before, kept)
        known = own.isfinite() & TorchBackend().norms(pending.directions).isfinite()
        own = torch.where(known, own, 0.0)
        lengths = update.lengths(state, members, own)
        bounds = [b for b in (update.bound, bound) if b is not None]
        if bounds:
            lengths = torch.minimum(lengths, min(bounds) * own)
        share, plain = update.share, TorchBackend()
        pairs = zip(pending.directions, values, strict=True)
        new = [d.to(torch.promote_types(d.dtype, upcast(v).dtype)) for d, v in pairs]
        torch._foreach_mul_(new, list((share * lengths).unbind()))
        plain.add_scaled(new, before, [share * rest for rest in kept])
        if share < 1.0:
            plain.add_scaled(new, values, [1.0 - share] * len(new))
        # If the optimizer's update is zero or not finite, there is nothing to correct.
        lost = (own == 0).unbind() if own.device.type != "cpu" or not bool(own.all()) else None
        for row, k in enumerate(members):
            mask = masks[k]
            if lost is not None:
                mask = lost[row] if mask is None else mask | lost[row]
            if mask is not None:
                value = upcast(values[row]).to(new[row].dtype)
                new[row] = torch.where(mask, value, new[row])
        write(values, new, [self.carry[k] for k in members] if self.carry else [])

    def _learn(
        self,
        options: Mapping[int, Options],
        pending: _PendingUpdate,
        masks: Sequence[Tensor | None],
        movement: WeightDelta | None,
    ) -> None:
        predictor, state, window = self.plan.predictor, self.history_state, self._window
        assert predictor is not None and state is not None and window is not None
        rates = [options[id(p)].rate for p in self.parameters]
        if not any(isinstance(rate, Tensor) or rate > 0 for rate in rates):
            return
        moved = per_rate([upcast(x) for x in pending.before], self._values(), rates)
        for x, mask in zip(moved, masks, strict=True):
            # A displacement by a gradient that is not finite would stay in the drift.
            if mask is not None:
                x.masked_fill_(mask, 0.0)
        if movement is not None and (own := movement.of(self.names)).names:
            self.slopes = [slopes(own, self.average, moved, rates, self.parameters)]
        if window.add(moved):
            count = window.count
            self._closed_window = count, window.close(shards.norm_factors(self.parameters))
        predictor.observe(state, moved, self._backend(range(len(moved))))
        if window.due:
            window.open(self._forecast([1.0] * len(moved)), predictor.directions(state))

    def _forecast(self, rates: Sequence[float | Tensor]) -> WeightDelta:
        predictor, state = self.plan.predictor, self.history_state
        assert predictor is not None and state is not None
        delta = predictor.forecast(state, rates)
        check_delta(predictor, delta, self.names, self._values())
        return delta

    def _check_directions(
        self, update: AbstractUpdate, directions: Sequence[Tensor], members: Sequence[int]
    ) -> None:
        subject = f"{type(update).__name__}.direction"
        if not isinstance(directions, (list, tuple)) or len(directions) != len(members):
            raise PredictorError(subject, f"a list of {len(members)} directions", directions)
        for k, direction in zip(members, directions, strict=True):
            check_form(subject, self.names[k], direction, shards.local(self.parameters[k]))

    def _values(self) -> list[Tensor]:
        return [shards.local(p) for p in self.parameters]

    def _backend(self, members: Sequence[int]) -> TorchBackend:
        chosen = [self.parameters[k] for k in members]
        if any(shards.is_sharded(p) for p in chosen):
            return ShardedBackend(chosen, self._history)
        return TorchBackend(self._history)

    def inherit(self, other: TensorGroup) -> None:
        """Copy the state of tensors that were in another group with the same plan."""
        if other.plan != self.plan:
            return
        places = {name: k for k, name in enumerate(other.names)}
        pairs = [(k, places[name]) for k, name in enumerate(self.names) if name in places]
        others = other._arrays()
        for name, arrays in self._arrays().items():
            for k, source in pairs if others[name] else ():
                if arrays and arrays[k].shape == others[name][source].shape:
                    arrays[k].copy_(others[name][source])
        if self.update_state is not None and other.update_state is not None:
            self.update_state.numbers = dict(other.update_state.numbers)
        if self.history_state is not None and other.history_state is not None:
            self.history_state.count = other.history_state.count
            known = other.history_state.numbers
            shared = {n: list(known[n]) for n in self.names if n in known}
            self.history_state.numbers.update(shared)

    def state_dict(self, *, whole: bool = True) -> dict[str, Any] | None:
        """Return the state of the group.

        Args:
            whole: If parameters are sharded, whether to gather full tensors on the host of rank 0.
                Every rank has to call it then, and all other ranks get None. Otherwise each rank
                gets its local shards.
        """
        update, history = self.update_state, self.history_state
        fitted = dict(history.numbers) if history else {}
        state = {
            "key": self.plan.key(),
            "names": list(self.names),
            "count": history.count if history else 0,
            "numbers": dict(update.numbers) if update else {},
            "fitted": {name: list(numbers) for name, numbers in fitted.items()},
            **self._arrays(),
        }
        # The samples of local shards differ between ranks.
        sharded = whole and any(map(shards.is_sharded, self.parameters))
        window = self._window.state_dict() if self._window else None
        windows = ranks.gather(window) if sharded else [window]
        collected = shards.gather_state(state, self.parameters) if whole else state
        return None if collected is None else {**collected, "windows": windows}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, gathered or local.

        Raises:
            CheckpointError: If an array is missing or has another shape.
        """
        state = shards.shard_state(saved, self.parameters)
        for name, arrays in self._arrays().items():
            found = state.get(name)
            shapes = [tuple(a.shape) for a in arrays]
            if not isinstance(found, list) or [tuple(a.shape) for a in found] != shapes:
                raise CheckpointError(
                    f"state: expected {name} of shapes {shapes[:3]}..., got other shapes. "
                    "Resume from another checkpoint."
                )
            for target, source in zip(arrays, found, strict=True):
                target.copy_(source)
        if self.update_state is not None:
            for name, number in self.update_state.numbers.items():
                self.update_state.numbers[name] = state["numbers"][name].to(number)
        if self.history_state is not None:
            self.history_state.count = int(state["count"])
            self.history_state.numbers = {n: list(x) for n, x in state["fitted"].items()}
        if self._window is not None:
            self._window.load_state_dict(self._own_window(saved["windows"]))

    def _own_window(self, windows: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
        """This rank's window, or an empty one if the tensors are sharded differently now."""
        assert self._window is not None
        count = len(windows)
        found = windows[ranks.rank() if count == ranks.size() else 0] if count else None
        split = count > 1 or any(map(shards.is_sharded, self.parameters))
        if found is None or (split and not self._window.fits(found)):
            return Window(self._window.length, self._values()).state_dict()
        return found

    def _arrays(self) -> dict[str, list[Tensor]]:
        lists = {"average": self.average, "carry": self.carry}
        if self.update_state is not None:
            lists.update({f"update.{n}": a for n, a in self.update_state.arrays.items()})
        if self.history_state is not None:
            lists.update({f"history.{n}": a for n, a in self.history_state.arrays.items()})
        return lists
