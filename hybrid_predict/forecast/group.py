"""Tensors of one kind and one optimizer that are corrected, predicted, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.forecast.masks import (
    either,
    optimizer_only,
    unmoved,
    usable_gradients,
    without_gradient,
)
from hybrid_predict.forecast.memory import GroupMemory, load_window
from hybrid_predict.forecast.plan import Plan
from hybrid_predict.forecast.predictors.base import PredictorState
from hybrid_predict.forecast.predictors.contract import check_delta, check_directions
from hybrid_predict.forecast.projection import projects
from hybrid_predict.forecast.slopes import slopes
from hybrid_predict.forecast.window import Reading, Window, window_length
from hybrid_predict.tensors import ShardedBackend, TorchBackend, ranks, shards, upcast
from hybrid_predict.tensors.torch import per_rate
from hybrid_predict.torch.deltas import WeightDelta, write
from hybrid_predict.torch.optimizer import OptimizerWrapper, Options
from hybrid_predict.updates.base import UpdateState

AVERAGE = 0.95
"""Decay of averaged gradients where no update asks for another."""


@final
@dataclass
class _PendingUpdate:
    """What is stored between the hooks before and after an update."""

    members: list[int]
    before: list[Tensor]
    usable: Tensor | None
    still: dict[int, Tensor | None] = field(default_factory=dict)
    directions: list[Tensor] = field(default_factory=list)
    unknown: dict[int, Tensor] = field(default_factory=dict)


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
        self.plan, self.names, self.parameters = plan, tuple(names), list(parameters)
        self._history, self._momentum = history, momentum
        self._block: int | None = None
        self._pending: _PendingUpdate | None = None
        self._closed_window: tuple[int, Tensor] | None = None
        self.slopes: list[Tensor] = []  # of the verifying update just made

    @cached_property
    def memory(self) -> GroupMemory:
        """What is kept between full steps; allocated when it is first needed."""
        values, length = self._values(), window_length(self._momentum)
        backend = self._backend(range(len(values)))
        made = GroupMemory.allocate(self.plan, self.names, values, backend, length)
        if made.update is not None:
            made.update.block = self._block
        return made

    @property
    def _allocated(self) -> bool:
        return "memory" in self.__dict__

    @property
    def update_state(self) -> UpdateState | None:
        """State of the corrected update."""
        return self.memory.update

    @property
    def history_state(self) -> PredictorState | None:
        """State of the predictor."""
        return self.memory.history

    @property
    def _window(self) -> Window | None:
        return self.memory.window

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
        still: dict[int, Tensor | None] = {}
        if self.plan.kind != "embedding":  # many rows of a table have no gradient in any batch
            still = dict(zip(members, without_gradient(chosen, gradients, options), strict=True))
        average = [self.memory.average[k] for k in members]
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
            check_directions(update, directions, [(self.names[k], values[k]) for k in members])
        for k, value in zip(members, average, strict=True):
            self.memory.average[k] = value
        before = [v.clone() for v in values]
        unknown = self.memory.examination.copies(self.names, members, gradients, directions)
        self._pending = _PendingUpdate(members, before, usable, still, directions, unknown)

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
            masks = optimizer_only(self.memory.average, pending.members, pending.usable, good)
            columns = zip(self.parameters, self._values(), pending.before, strict=True)
            still = [
                unmoved(value, before, options[id(p)], pending.still.get(k), good)
                for k, (p, value, before) in enumerate(columns)
            ]
            masks = [either(*pair) for pair in zip(masks, still, strict=True)]
            if pending.unknown:
                self._examine(options, pending)
            if pending.directions:
                self._correct(options, bound, pending, masks)
            if self.plan.predictor is not None:
                self._learn(options, pending, masks, still, movement)
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
        self._block = block
        if self._allocated and self.update_state is not None:
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
        own = self._window.length if self._allocated and self._window is not None else 0
        return own or (window_length(self._momentum) if self.plan.predictor is not None else 0)

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps."""
        return self.memory.held_bytes if self._allocated else 0

    def _directions(self) -> list[list[Tensor]]:
        predictor, state = self.plan.predictor, self.history_state
        return predictor.directions(state) if predictor and state else []

    def forecast(self, options: Mapping[int, Options]) -> WeightDelta | None:
        """Forecast the movement of one predicted step; None before the first displacement.

        Raises:
            PredictorError: If the predictor returns a forecast of the wrong form.
        """
        state = self.history_state if self._allocated else None
        if state is None or not state.count:
            return None
        return self._forecast([options[id(p)].rate for p in self.parameters])

    def drift_lengths(self, options: Mapping[int, Options]) -> list[Tensor]:
        """Return how far the drift of each tensor moves at the current learning rate, 0-dim."""
        assert self._window is not None
        rates = [options[id(p)].rate for p in self.parameters]
        return [(rate * norm).abs() for rate, norm in zip(rates, self._window.norms(), strict=True)]

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
            if self.memory.examination.found.get(self.names[k]):
                new[row] = upcast(values[row]).to(new[row].dtype)
                continue
            if lost is not None:
                mask = lost[row] if mask is None else mask | lost[row]
            if mask is not None:
                value = upcast(values[row]).to(new[row].dtype)
                new[row] = torch.where(mask, value, new[row])
        write(values, new, [self.memory.carry[k] for k in members] if self.memory.carry else [])

    @property
    def projected(self) -> bool:
        """Whether the optimizer was seen to project an update of these tensors."""
        return self._allocated and any(self.memory.examination.found.values())

    def _examine(self, options: Mapping[int, Options], pending: _PendingUpdate) -> None:
        """Find out whether the optimizer projects its updates of these tensors."""
        members = list(pending.unknown)
        values = [shards.local(self.parameters[k]) for k in members]
        before = [pending.before[k] for k in members]
        own = [options[id(self.parameters[k])] for k in members]
        gradients = list(pending.unknown.values())
        backend = self._backend(members)
        answers = projects(values, before, gradients, own, self._momentum, backend)
        self.memory.examination.read([self.names[k] for k in members], answers)

    def _learn(
        self,
        options: Mapping[int, Options],
        pending: _PendingUpdate,
        masks: Sequence[Tensor | None],
        still: Sequence[Tensor | None],
        movement: WeightDelta | None,
    ) -> None:
        predictor, state, window = self.plan.predictor, self.history_state, self._window
        assert predictor is not None and state is not None and window is not None
        rates = [options[id(p)].rate for p in self.parameters]
        if not any(isinstance(rate, Tensor) or abs(rate) > 0 for rate in rates):
            return
        moved = per_rate([upcast(x) for x in pending.before], self._values(), rates)
        for x, mask in zip(moved, masks, strict=True):
            # A displacement by a gradient that is not finite would stay in the drift.
            if mask is not None:
                x.masked_fill_(mask, 0.0)
        if movement is not None and (own := movement.of(self.names)).names:
            self.slopes = [slopes(own, self.memory.average, moved, rates, self.parameters)]
        if window.add(moved):
            self._closed_window = window.count, window.close(shards.norm_factors(self.parameters))
        predictor.observe(state, moved, self._backend(range(len(moved))))
        # Otherwise forecasts would go on moving what stands still now.
        for arrays in state.arrays.values():
            for x, mask in zip(arrays, still, strict=True):
                if mask is not None:
                    x.masked_fill_(mask, 0.0)
        if window.due:
            window.open(self._forecast([1.0] * len(moved)), predictor.directions(state))

    def _forecast(self, rates: Sequence[float | Tensor]) -> WeightDelta:
        predictor, state = self.plan.predictor, self.history_state
        assert predictor is not None and state is not None
        delta = predictor.forecast(state, rates)
        check_delta(predictor, delta, self.names, self._values())
        return delta

    def _values(self) -> list[Tensor]:
        return [shards.local(p) for p in self.parameters]

    def _backend(self, members: Sequence[int]) -> TorchBackend:
        chosen = [self.parameters[k] for k in members]
        if any(shards.is_sharded(p) for p in chosen):
            return ShardedBackend(chosen, self._history)
        return TorchBackend(self._history)

    def inherit(self, other: TensorGroup) -> None:
        """Copy the state of tensors that were in another group with the same plan."""
        if other.plan == self.plan and other._allocated:
            self.memory.inherit(other.memory, self.names, other.names)

    def state_dict(self, *, whole: bool = True) -> dict[str, Any] | None:
        """Return the state of the group.

        Args:
            whole: If parameters are sharded, whether to gather full tensors on the host of rank 0.
                Every rank has to call it then, and all other ranks get None. Otherwise each rank
                gets its local shards.
        """
        state = {"key": self.plan.key(), "names": list(self.names), **self.memory.state_dict()}
        # The samples of local shards differ between ranks.
        sharded = whole and any(map(shards.is_sharded, self.parameters))
        window = self._window.state_dict() if self._window else None
        windows = ranks.gather(window) if sharded else [window]
        collected = shards.gather_state(state, self.parameters) if whole else state
        return None if collected is None else {**collected, "windows": windows}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, gathered or local.

        Raises:
            CheckpointError: If an array is missing or has another shape, or a number cannot be.
        """
        self.memory.load_state_dict(shards.shard_state(saved, self.parameters))
        if self._window is not None:
            load_window(self._window, saved["windows"], self.parameters)
