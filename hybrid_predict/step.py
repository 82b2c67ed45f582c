"""The open full step: its predicted steps, its measurements, and their undo."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.forecast.movement import Forecast
from hybrid_predict.groups.group import Group
from hybrid_predict.groups.open_update import Learned, OpenUpdate
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.measurement import Measurement, Moved, Part, as_scalar, mean_loss, scaled
from hybrid_predict.rules.schedule import Phase
from hybrid_predict.rules.verdict import INTERRUPTED, LOADED, NO_UPDATE, Verdict, cause, sound
from hybrid_predict.torch import lists, shards
from hybrid_predict.torch.buffers import BufferTracker
from hybrid_predict.torch.deltas import Movement, WeightDelta
from hybrid_predict.torch.gradients import dense_gradient, gradient_norms
from hybrid_predict.torch.optimizer import OptimizerWrapper, Options
from hybrid_predict.torch.parameters import ParameterMapper
from hybrid_predict.torch.reading import VerifiedReads

UNCOUNTED = "a state was saved between an update and after_step(), so it does not count the update"
"""Event for a saved state that does not go with the weights."""


@final
class _Gradient(NamedTuple):
    """The gradient of one parameter: its norm (of the local shard), and who updates it."""

    norm: Tensor
    optimizer: int
    parameter: Tensor


@final
class Step:
    """One full step and the predicted steps right before it, as one transaction.

    It is opened before the forward pass, judged when the gradients of each optimizer are final, and
    closed after the updates. Until it is closed, :meth:`undo` removes every trace of the predicted
    steps from weights and buffers.

    Args:
        number: Number of the full step, from 1.
        optimizer: The optimizers.
        buffers: Tracks the buffers and frozen parameters that change in a full step.

    Attributes:
        measured: What was measured in the step, as far as it is read.
    """

    def __init__(self, number: int, optimizer: OptimizerWrapper, buffers: BufferTracker) -> None:
        self.number = number
        self.measured = Measurement(number)
        self.phase = Phase.PLAIN
        self.corrected = False
        self.calls: Counter[int] = Counter()
        self.active: int | None = None
        self.hook_seconds = self.predict_seconds = self.opened_at = 0.0
        self._optimizer, self._buffers = optimizer, buffers
        self._forecast: Forecast | None = None
        self._movement: Movement | None = None
        self._reads: VerifiedReads | None = None
        self._updates: list[OpenUpdate] = []
        self._loss: Tensor | float | None = None
        self._has_gradients = False
        self._reached: set[str] = set()  # parameters that their optimizer can update
        self._held: set[int] = set()  # optimizers whose next or last update does not happen
        self._gradients: dict[str, _Gradient] = {}
        self._is_finite = True  # whether the movement that is judged is
        self._learned = Learned()

    def predict(
        self,
        mapper: ParameterMapper,
        forecast: Forecast,
        count: int,
        carries: dict[str, Tensor],
    ) -> None:
        """Take ``count`` predicted steps at once."""
        self._buffers.copy()
        self._forecast = forecast
        self.measured.predicted = count
        delta = forecast.delta.scaled(count) if count > 1 else forecast.delta
        self._movement = mapper.movement(delta, carries)
        copied, undo = self._buffers.copies, partial(self._withdraw, LOADED)
        self._reads = mapper.reads(
            self._movement, copied, lambda: self._unverified() if self._movement else [], undo
        )
        self._reads.open()
        self._movement.apply()

    def observe_loss(self, loss: object) -> None:
        """Store the loss, if it is known before the update."""
        self._loss = self._loss if loss is None else mean_loss(loss)

    @property
    def predicted(self) -> int:
        """Number of predicted steps right before the full step."""
        return self.measured.predicted

    @property
    def with_gradient(self) -> set[int]:
        """Parameters that have had a gradient, by ``id``."""
        return {id(gradient.parameter) for gradient in self._gradients.values()}

    @property
    def has_updated(self) -> bool:
        """Whether an optimizer has updated."""
        return bool(self.calls)

    @property
    def closes_window(self) -> bool:
        """Whether a window was closed."""
        return bool(self._learned.windows)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the predicted steps, as it is now; None if there are none."""
        if not self.predicted:
            return None
        stands = not (self.measured.held or self._unverified())
        return Verdict.STANDS if stands else Verdict.UNDONE

    def reopen(self, index: int) -> None:
        """Discard the measurements and the verdict of an update that has raised."""
        self.active = None
        self._updates.clear()
        if index in self._held:
            self._held.discard(index)
            self.measured.held = ""
        if not self.calls[index]:  # else what was measured is of an earlier update, which was made
            for name in [n for n, g in self._gradients.items() if g.optimizer == index]:
                del self._gradients[name]
                self.measured.norms.pop(name, None)
                self.measured.moved.pop(name, None)

    def measure(
        self, index: int, names: dict[int, str], options: dict[int, Options], loss: object
    ) -> Part | None:
        """Measure the gradients of one optimizer, right before it updates.

        Returns:
            The numbers that decide about the predicted steps, for :meth:`judge`; None if there is
            nothing to decide.
        """
        optimizer: Any = self._optimizer.optimizers[index]
        listed = self._optimizer.parameters(index)
        held = [p for p in listed if shards.has_gradient(p)]
        reached = [*held, *(p for p in listed if p.requires_grad)]
        self._reached |= {names.get(id(p), "") for p in reached}
        self.observe_loss(loss)
        self._has_gradients = bool(held)
        if self._optimizer.skips(index):
            self._held.add(index)
        if self.calls[index]:
            return None
        gradients = [dense_gradient(p) for p in held]
        scale = getattr(optimizer, "grad_scale", None)
        norms = gradient_norms(gradients, scale)
        for p, norm in zip(held, norms, strict=True):
            name = names.get(id(p), f"unnamed.{len(self._gradients)}")
            # Two optimizers may share the parameter.
            self._gradients.setdefault(name, _Gradient(norm, index, p))
        if self._movement is None:
            return None
        rows = zip(held, gradients, strict=True)
        known = {names.get(id(p), ""): (g, options[id(p)].sign) for p, g in rows}
        return self._deciding(index, known, scale)

    def judge(self, index: int, loss_limit: float, norm_limit: float) -> None:
        """Hold back an optimizer's update if it does not verify its predicted steps.

        Args:
            index: Number of the optimizer, whose numbers of :meth:`measure` are read.
            loss_limit: Largest loss that verifies them.
            norm_limit: Largest norm of its gradients.
        """
        measured = self.measured
        norm = measured.norm(index) if self._has_gradients else 0.0
        if index in self._held:
            measured.held = NO_UPDATE
        elif self._is_finite and sound(norm, norm_limit, measured.loss, loss_limit):
            return
        else:
            measured.held = cause(norm, norm_limit, measured.loss, loss_limit)
        self._held.add(index)
        self._optimizer.hold_back(index)

    def updates(self, index: int) -> bool:
        """Return whether an optimizer's next or last update happens."""
        return index not in self._held

    def count_update(self, index: int) -> None:
        """Count an update of one optimizer, if it had gradients."""
        if self._has_gradients:
            self.calls[index] += 1
        self.active = None

    def open_updates(
        self,
        groups: Sequence[Group],
        options: Mapping[int, Options],
        *,
        correct: bool,
    ) -> None:
        """Average the gradients of groups and find their corrected directions, before an update."""
        opened = [group.open(self._optimizer, options, correct=correct) for group in groups]
        self._updates = [update for update in opened if update is not None]

    def learn(self, index: int, options: Mapping[int, Options]) -> None:
        """Correct the update that one optimizer has made, and learn its displacement."""
        updates = self._updates
        self._updates = []
        movement: WeightDelta | None = None
        if self._movement is not None and self.calls[index] == 1:
            movement = self._movement.delta
        for update in updates:
            update.group.close(update, options, movement, self._learned)
            self.corrected |= update.corrects

    def close_update(self, index: int) -> None:
        """After an update, undo its part of the predicted steps if they do not stand."""
        held = index in self._held
        if self._movement is not None and self._forecast is not None and self.calls[index] == 1:
            rows = enumerate(zip(self._movement.delta.names, self._forecast.owners, strict=True))
            own = {k: name in self._reached for k, (name, owner) in rows if owner == index}
            if left := [k for k, reached in own.items() if not reached]:  # inside the step
                self._movement.undo_after_writes(left)
            if held:
                self._movement.undo([k for k, reached in own.items() if reached])
                self._buffers.undo_changes()
        self._held.discard(index)  # only the first update of a full step verifies

    def close(self, loss: Tensor | float | None) -> None:
        """Close the step, and undo predicted movement that no update has verified."""
        self.observe_loss(loss)
        if self._movement is not None and (unseen := self._unverified()):
            self.measured.held = self.measured.held or NO_UPDATE
            self._undo_members(self._movement, unseen)
        self._movement = None
        self._end_reads()
        self._buffers.free()

    def undo(self, reason: str = INTERRUPTED, coming: int | None = None) -> None:
        """Undo the predicted steps, right before optimizer ``coming`` updates or at any point."""
        self._withdraw(reason, coming)
        self._end_reads()
        self._updates.clear()

    def _end_reads(self) -> None:
        if self._reads is not None:
            self._reads.close()
            self._reads = None

    def _withdraw(self, reason: str, coming: int | None = None) -> None:
        for index in range(len(self._optimizer.optimizers)):
            self._optimizer.restore_gradients(index)
        if self.predicted and (self._unverified() or self._held):
            self.measured.held = reason
        movement = self._movement
        if movement is not None:
            for index in [k for k in self._held if self.calls[k]]:
                self.close_update(index)
            if coming is not None and not self.calls[coming]:
                # Its gradients belong to the predicted weights, which are being undone.
                self._optimizer.hold_back(coming)
            self._undo_members(movement, self._unverified())
        # Last, so that an interrupted undo can be repeated.
        self.active = self._movement = None
        self._buffers.free()

    def saving(self, record_event: Callable[[str, int, int], None]) -> AbstractContextManager[None]:
        """Put rounding errors back to those of verified weights while a state is saved."""
        if self.has_updated:
            record_event(UNCOUNTED, logging.WARNING, self.number)
        movement = self._movement
        return nullcontext() if movement is None else movement.without_carries(self._unverified())

    def rest(self, use: Callable[[Measurement], None], *, stop: bool) -> Part:
        """Return the numbers of the step that are not read yet.

        Args:
            use: Called with the measurement once they are read.
            stop: Whether this rank was asked to stop.
        """
        measured, learned = self.measured, self._learned
        measured.warmup = self.phase is Phase.WARMUP
        unread = {n: g for n, g in self._gradients.items() if n not in measured.norms}
        factors, device = self._factors(), self._device
        norms = scaled([g.norm for g in unread.values()], [factors[n] for n in unread], device)
        head = self._with_loss([float(stop)])
        closed = [numbers.to(head.device) for _, numbers in learned.windows]
        if learned.slopes:
            closed.insert(0, torch.stack([each.to(head.device) for each in learned.slopes]).sum(0))
        sums = torch.cat([head, *closed])
        tags = [(tag, len(numbers)) for tag, numbers in learned.windows]

        def take(norms: list[float], sums: list[float]) -> None:
            self._take_norms(unread, norms)
            loss, known, stops, *others = sums
            measured.take_loss(loss, known)
            measured.stop = stops > 0
            measured.take_rest(tags, others)
            use(measured)

        return Part(norms, sums, take)

    def add_seconds(self, ledger: SavingsLedger, closed_at: float, ended_at: float) -> None:
        """Add the host seconds of user code, corrections, and predictions to the ledger."""
        in_hooks, around = self.hook_seconds, self.predict_seconds + ended_at - closed_at
        seconds = max(0.0, closed_at - self.opened_at - in_hooks)
        ledger.full_seconds += seconds
        if self.number == 1:
            ledger.startup_seconds = seconds
        ledger.correct_seconds += max(0.0, in_hooks)
        ledger.predict_seconds += max(0.0, around)

    def _unverified(self) -> list[int]:
        """Return the positions in the movement of tensors whose optimizer has not updated."""
        owners = () if self._forecast is None else self._forecast.owners
        return [k for k, owner in enumerate(owners) if not self.calls[owner]]

    def _undo_members(self, movement: Movement, members: list[int]) -> None:
        if members:
            movement.undo_after_writes(members)
            self._buffers.undo_changes()

    @property
    def _device(self) -> torch.device | None:
        """Device of what is measured; None for that of plain numbers."""
        first = next((gradient.norm for gradient in self._gradients.values()), self._loss)
        return first.device if isinstance(first, Tensor) else None

    def _factors(self) -> dict[str, float]:
        """Return one factor per gradient, with which every entry counts once over the ranks."""
        counts = shards.norm_factors([each.parameter for each in self._gradients.values()])
        return dict(zip(self._gradients, counts or [1.0] * len(self._gradients), strict=True))

    def _with_loss(self, numbers: Sequence[float]) -> Tensor:
        """Return the loss, whether it is known, and more numbers, shape (2 + K,)."""
        known = self._loss is not None
        loss = 0.0 if self._loss is None else self._loss
        each = (loss, float(known), *numbers)
        return torch.stack([as_scalar(number, self._device) for number in each])

    def _take_norms(self, gradients: Mapping[str, _Gradient], norms: Sequence[float]) -> None:
        for (name, gradient), norm in zip(gradients.items(), norms, strict=True):
            self.measured.norms[name] = norm
            self.measured.optimizers[name] = gradient.optimizer

    def _deciding(
        self, index: int, gradients: dict[str, tuple[Tensor, float]], scale: Tensor | None
    ) -> Part:
        """Return norms of one optimizer's gradients, its movement, and products of both.

        ``gradients`` are dense, each with the sign of its update.
        """
        assert self._movement is not None and self._forecast is not None
        measured, device, weights = self.measured, self._device, self._factors()
        delta, owners, drifts = self._movement.delta, *self._forecast[1:3]
        columns = zip(delta.names, delta.directions, delta.factors, drifts, owners, strict=True)
        rows = [(n, d, f, drift) for n, d, f, drift, owner in columns if owner == index]
        norms = lists.norms([direction for _, direction, _, _ in rows])
        lengths = lists.scaled(norms, [lists.size(factor) for _, _, factor, _ in rows])
        met = [k for k, (name, *_) in enumerate(rows) if name in gradients]
        names = [rows[k][0] for k in met]
        sides = [(*gradients[rows[k][0]], *rows[k][1:3]) for k in met]
        dots = lists.dots([g.reshape(d.shape) for g, _, d, _ in sides], [d for _, _, d, _ in sides])
        if scale is not None:
            dots = dots / scale.to(dots.device)
        slopes = lists.scaled(dots, [sign * factor for _, sign, _, factor in sides])
        own = {n: g for n, g in self._gradients.items() if g.optimizer == index}
        each = [weights[name] for name in names]
        flat = scaled(
            [*(g.norm for g in own.values()), *lengths, *(rows[k][3] for k in met)],
            [
                *(weights[name] for name in own),
                *(weights.get(name, 1.0) for name, *_ in rows),
                *each,
            ],
            device,
        )
        products = scaled(list(slopes), [weight**2 for weight in each], device)

        def take(norms: list[float], sums: list[float]) -> None:
            self._take_norms(own, norms[: len(own)])
            lengths = norms[len(own) : len(own) + len(rows)]
            self._is_finite = all(map(math.isfinite, lengths))
            columns = [lengths[k] for k in met], norms[len(own) + len(rows) :], sums[2:]
            measured.moved.update(zip(names, map(Moved, *columns), strict=True))
            measured.take_loss(*sums[:2])

        return Part(flat, torch.cat([self._with_loss([]), products]), take)
