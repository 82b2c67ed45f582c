"""Tensors of one kind and one optimizer: average gradients, correct, displace, sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.forecast.movement import check_delta, slopes
from hybrid_predict.forecast.window import Reading
from hybrid_predict.memory import Memory, Treatment, allocate
from hybrid_predict.rules.skill import window_length
from hybrid_predict.rules.verdict import AVERAGE
from hybrid_predict.torch import lists, shards
from hybrid_predict.torch.deltas import WeightDelta
from hybrid_predict.torch.lists import Counts, upcast
from hybrid_predict.torch.optimizer import OptimizerWrapper, Options
from hybrid_predict.updates.correct import Correction, correction
from hybrid_predict.updates.masks import (
    either,
    optimizer_only,
    unmoved,
    usable_gradients,
    without_gradient,
)
from hybrid_predict.updates.projection import projects


@final
@dataclass
class OpenUpdate:
    """What a group has noted right before an update.

    Args:
        group: The group.
        members: Positions of the tensors that have a gradient.
        options: How each tensor is updated.
        before: Weights before the update.
        usable: Which gradients are usable; None if all are.
        still: Mask of the entries whose own gradient is exactly zero, by position.
        correction: The corrected updates, or None.
        examined: Gradients of tensors whose optimizer is examined, by position.
    """

    group: Group
    members: list[int]
    options: list[Options]
    before: list[Tensor]
    usable: Tensor | None
    still: dict[int, Tensor | None]
    correction: Correction | None
    examined: dict[int, Tensor]


@final
@dataclass
class Learned:
    """What updates have shown: tags and numbers of closed windows, and slopes of verified steps."""

    windows: list[tuple[list[Any], Tensor]] = field(default_factory=list)
    slopes: list[Tensor] = field(default_factory=list)


@final
class Group:
    """Tensors of one kind and one optimizer that are corrected, predicted, or both.

    Memory between full steps, allocated by the first update: averaged gradients, rounding errors of
    16-bit weights, and the states of update, predictor and window.

    Args:
        treatment: How the tensors are treated.
        names: Names of the K parameters.
        parameters: The K parameters.
        history: Type in which averages are stored.
        momentum: Momentum coefficient of the optimizer, in [0, 1).
    """

    def __init__(
        self,
        treatment: Treatment,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        history: str,
        momentum: float = 0.0,
    ) -> None:
        self.treatment, self.names = treatment, tuple(names)
        self._type, self._momentum = history, momentum
        self._block: int | None = None
        self.follow(parameters)

    @cached_property
    def memory(self) -> Memory:
        """What is kept between full steps; allocated when it is first needed."""
        memory = allocate(self.treatment, self.names, self.parameters, self._type, self._momentum)
        if memory.update is not None:
            memory.update.block = self._block
        return memory

    @property
    def _allocated(self) -> bool:
        return "memory" in self.__dict__

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """Take other tensors in place of the parameters; what is known of them stays."""
        self.parameters = list(parameters)
        self._sharded = any(map(shards.is_sharded, parameters))

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.parameters)

    @property
    def window_length(self) -> int:
        """Number of displacements in a window; 0 without a predictor."""
        if self._allocated and self.memory.window is not None:
            return self.memory.window.length
        return window_length(self._momentum) if self.treatment.predictor is not None else 0

    @property
    def held_bytes(self) -> int:
        """Memory in bytes that is kept between full steps."""
        return self.memory.held_bytes if self._allocated else 0

    @property
    def projected(self) -> bool:
        """Whether the optimizer was seen to project an update of these tensors."""
        return self._allocated and any(self.memory.examination.projected.values())

    def open(
        self,
        optimizer: OptimizerWrapper,
        options: Mapping[int, Options],
        good: Tensor | bool,
        *,
        correct: bool,
    ) -> OpenUpdate | None:
        """Average the gradients and find the corrected directions, right before an update.

        Args:
            optimizer: The optimizers.
            options: How each parameter is updated, by ``id``.
            good: Whether the update will happen; if not, the averages do not change.
            correct: Whether to correct the update.

        Returns:
            What :meth:`close` needs; None if no tensor has a gradient.
        """
        members = [k for k, p in enumerate(self.parameters) if p.grad is not None]
        if not members:
            return None
        treatment, memory, values = self.treatment, self.memory, self._values()
        chosen, own = (
            [self.parameters[k] for k in members],
            [options[id(p)] for p in self.parameters],
        )
        gradients = [
            optimizer.gradient(treatment.owner, p, own[k]).reshape(values[k].shape)
            for k, p in zip(members, chosen, strict=True)
        ]
        still: dict[int, Tensor | None] = {}
        if treatment.kind != "embedding":  # many rows of a table have no gradient in any batch
            rows = zip(members, chosen, gradients, strict=True)
            still = {k: without_gradient(p, g, own[k]) for k, p, g in rows}
        average, counts = [memory.average[k] for k in members], self._counts(chosen)
        update = treatment.update if correct else None
        if update is not None:
            norms, cosines = lists.angles(gradients, average, counts)
        else:
            norms = lists.norms(gradients, counts)
        gradients, usable = usable_gradients(gradients, average, norms, good)
        lists.average(average, gradients, treatment.update.decay if treatment.update else AVERAGE)
        made, examined = None, {}
        if update is not None and memory.update is not None:
            made = correction(update, memory.update, members, average, gradients, cosines, chosen)
            examined = memory.examination.copies(self.names, members, gradients)
        before = [v.clone() for v in values]
        return OpenUpdate(self, members, own, before, usable, still, made, examined)

    def close(
        self,
        update: OpenUpdate,
        good: Tensor | bool,
        bound: float | None,
        movement: WeightDelta | None,
    ) -> Learned:
        """Correct the update that was just made, and learn its displacement.

        Args:
            update: What :meth:`open` has noted.
            good: Whether the update has happened.
            bound: Largest length of a corrected update in lengths of the optimizer's update,
                besides the bound of the update itself; None for no further bound.
            movement: The predicted movement that the update verifies, if any.
        """
        with torch.no_grad():
            values = self._values()
            only = optimizer_only(
                self.memory.average, update.members, update.usable, update.still, good
            )
            columns = zip(values, update.before, update.options, strict=True)
            still = [unmoved(*each, update.still.get(k), good) for k, each in enumerate(columns)]
            masks = [either(*pair) for pair in zip(only, still, strict=True)]
            if update.examined:
                self._examine(update, values)
            if update.correction is not None:
                self._correct(update, values, bound, masks)
            if self.treatment.predictor is None:
                return Learned()
            return self._learn(update, values, masks, still, movement)

    def _correct(
        self,
        update: OpenUpdate,
        values: Sequence[Tensor],
        bound: float | None,
        masks: Sequence[Tensor | None],
    ) -> None:
        assert update.correction is not None
        members, examined = update.members, self.memory.examination.projected
        update.correction.write(
            [values[k] for k in members],
            [update.before[k] for k in members],
            [update.options[k] for k in members],
            bound,
            [True if examined.get(self.names[k]) else masks[k] for k in members],
            [self.memory.carries[k] for k in members] if self.memory.carries else [],
            self._counts([self.parameters[k] for k in members]),
        )

    def _examine(self, update: OpenUpdate, values: Sequence[Tensor]) -> None:
        """Find out whether the optimizer projects its updates of these tensors."""
        members = list(update.examined)
        answers = projects(
            [values[k] for k in members],
            [update.before[k] for k in members],
            list(update.examined.values()),
            [update.options[k] for k in members],
            self._momentum,
            self._counts([self.parameters[k] for k in members]),
        )
        self.memory.examination.read([self.names[k] for k in members], answers)

    def _learn(
        self,
        update: OpenUpdate,
        values: Sequence[Tensor],
        masks: Sequence[Tensor | None],
        still: Sequence[Tensor | None],
        movement: WeightDelta | None,
    ) -> Learned:
        predictor, memory = self.treatment.predictor, self.memory
        history, window = memory.history, memory.window
        assert predictor is not None and history is not None and window is not None
        learned, rates = Learned(), [own.rate for own in update.options]
        if not any(isinstance(rate, Tensor) or abs(rate) > 0 for rate in rates):
            return learned
        moved = lists.per_rate([upcast(x) for x in update.before], values, rates)
        # A displacement by a gradient that is not finite would stay in the drift.
        _clear([moved], masks)
        counts = shards.norm_factors(self.parameters)
        if movement is not None and (predicted := movement.of(self.names)).names:
            learned.slopes.append(slopes(predicted, memory.average, moved, rates, counts))
        if window.add(moved):
            steps, size, numbers = window.close(counts)
            tag = [self.treatment.kind, self.treatment.owner, list(self.names), steps, size]
            learned.windows.append((tag, numbers))
        predictor.observe(history, moved)
        # Otherwise forecasts would go on moving what stands still now.
        _clear(history.arrays.values(), still)
        if window.due:
            window.open(self._forecast([1.0] * len(moved)), predictor.fitted_direction(history))
        return learned

    def forecast(self, options: Mapping[int, Options]) -> WeightDelta | None:
        """Forecast the movement of one predicted step; None before the first displacement.

        Raises:
            PredictorError: If the predictor returns a forecast of the wrong form.
        """
        history = self.memory.history if self._allocated else None
        if history is None or not history.count:
            return None
        return self._forecast([options[id(p)].rate for p in self.parameters])

    def _forecast(self, rates: Sequence[float | Tensor]) -> WeightDelta:
        predictor, history = self.treatment.predictor, self.memory.history
        assert predictor is not None and history is not None
        delta = predictor.forecast(history, rates)
        check_delta(predictor, delta, self.names, self._values())
        return delta

    def drift_lengths(self, options: Mapping[int, Options]) -> list[Tensor]:
        """Return how far the drift of each tensor moves at the current learning rate, 0-dim."""
        assert self.memory.window is not None
        norms, rates = self.memory.window.norms(), [options[id(p)].rate for p in self.parameters]
        return [(rate * norm).abs() for rate, norm in zip(rates, norms, strict=True)]

    def fit(self, reading: Reading) -> float:
        """Fit the predictor to a window; return the squared length of the next forecast."""
        predictor, history = self.treatment.predictor, self.memory.history
        assert predictor is not None and history is not None
        return predictor.fit(history, reading)

    def operations(self, block: int | None) -> int:
        """Return the operations of the directions in a full step, with ``block`` rows at a time."""
        update = self.treatment.update
        return update.operations(self.parameters, block) if update else 0

    def set_block(self, block: int | None) -> None:
        """Treat at most ``block`` rows of a matrix together from now on; None for all."""
        self._block = block
        if self._allocated and self.memory.update is not None:
            self.memory.update.block = block

    def inherit(self, other: Group) -> None:
        """Copy what is known of tensors that were in another group with the same treatment."""
        if other.treatment == self.treatment and other._allocated:
            self.memory.inherit(other.memory, self.names, other.names)

    def state_dict(self, *, whole: bool = True) -> dict[str, Any] | None:
        """Return the state of the group; see `Memory.save`."""
        saved = self.memory.save(self.parameters, whole=whole)
        own = {"key": self.treatment.key(), "names": list(self.names)}
        return None if saved is None else {**own, **saved}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, gathered or local.

        Raises:
            CheckpointError: If an array is missing or has another shape, or a number cannot be.
        """
        self.memory.load(saved, self.parameters)

    def _values(self) -> list[Tensor]:
        return [shards.local(p) for p in self.parameters]

    def _counts(self, tensors: Sequence[Tensor]) -> Counts:
        """Factors that make norms those of full tensors; None if every rank has the full ones."""
        return shards.norm_factors(tensors) if self._sharded else None


def _clear(lists_of: Iterable[Sequence[Tensor]], masks: Sequence[Tensor | None]) -> None:
    """Set the masked entries of lists of tensors to zero."""
    for tensors in lists_of:
        for x, mask in zip(tensors, masks, strict=True):
            if mask is not None:
                x.masked_fill_(mask, 0.0)
