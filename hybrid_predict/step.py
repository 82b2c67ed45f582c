"""The open full step: its predicted steps, its measurements, and their undo."""

from __future__ import annotations

import logging
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
from hybrid_predict.measurement import Moved, as_scalar, mean_loss, pack
from hybrid_predict.rules.schedule import Phase
from hybrid_predict.rules.verdict import INTERRUPTED, LOADED, NO_UPDATE, cause, sound
from hybrid_predict.torch import lists, ranks, shards
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
    owner: int
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
    """

    def __init__(self, number: int, optimizer: OptimizerWrapper, buffers: BufferTracker) -> None:
        self.number = number
        self.phase = Phase.PLAIN
        self.predicted = 0
        self.held = ""
        self.reported = self.corrected = False
        self.calls: Counter[int] = Counter()
        self.active: int | None = None
        self.limits: list[float] = []
        self.hook_seconds = self.predict_seconds = self.opened_at = 0.0
        self._optimizer, self._buffers = optimizer, buffers
        self._forecast: Forecast | None = None
        self._movement: Movement | None = None
        self._reads: VerifiedReads | None = None
        self._updates: list[OpenUpdate] = []
        self._loss: Tensor | float | None = None
        self._has_gradients = False
        self._reached: set[str] = set()  # parameters that their optimizer can update
        self._good: dict[int, Tensor | bool] = {}
        self._flags: list[Tensor] = []
        self._gradients: dict[str, _Gradient] = {}
        self._moved: dict[str, Moved] = {}
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
        self._forecast, self.predicted = forecast, count
        delta = forecast.delta.scaled(count) if count > 1 else forecast.delta
        self._movement = mapper.movement(delta, carries)
        copied, undo = self._buffers.copies, partial(self._withdraw, LOADED)
        self._reads = mapper.reads(self._movement, copied, self._unverified, undo)
        self._reads.open()
        self._movement.apply()

    def observe_loss(self, loss: object) -> None:
        """Store the loss, if it is known before the update."""
        self._loss = self._loss if loss is None else mean_loss(loss)

    @property
    def with_gradient(self) -> set[int]:
        """Parameters that have had a gradient, by ``id``."""
        return {id(gradient.parameter) for gradient in self._gradients.values()}

    @property
    def has_updated(self) -> bool:
        """Whether an optimizer has updated."""
        return bool(self.calls)

    @property
    def stands(self) -> bool:
        """Whether updates have verified all predicted steps, which then stay."""
        verified = self.has_updated and not (self._unverified() or self.held)
        return verified and all(map(bool, self._flags))

    def reopen(self, index: int) -> None:
        """Discard the measurements and the verdict of an update that has raised."""
        self.active = None
        self._updates.clear()
        if self._good.pop(index, None) is not None:
            self.held = ""
        if not self.calls[index]:  # else what was measured is of an earlier update, which was made
            kept = {n: g for n, g in self._gradients.items() if g.owner != index}
            self._gradients, moved = kept, self._moved.items()
            self._moved = {name: m for name, m in moved if name in kept}

    def measure(
        self, index: int, names: dict[int, str], options: dict[int, Options], loss: object
    ) -> None:
        """Measure the gradients of one optimizer, and judge the predicted steps by them.

        With a fused optimizer the verdict stays on the device. Otherwise one flag is read, and the
        update is held back if the predicted steps do not stand.
        """
        optimizer: Any = self._optimizer.optimizers[index]
        listed = self._optimizer.parameters(index)
        held = [p for p in listed if shards.has_gradient(p)]
        reached = [*held, *(p for p in listed if p.requires_grad)]
        self._reached |= {names.get(id(p), "") for p in reached}
        self.observe_loss(loss)
        self._has_gradients = bool(held)
        if self.calls[index]:
            return
        gradients = [dense_gradient(p) for p in held]
        scale = getattr(optimizer, "grad_scale", None)
        norms = gradient_norms(gradients, scale)
        for p, norm in zip(held, norms, strict=True):
            name = names.get(id(p), f"unnamed.{len(self._gradients)}")
            # Two optimizers may share the parameter.
            self._gradients.setdefault(name, _Gradient(norm, index, p))
        existing = getattr(optimizer, "found_inf", None)
        if existing is not None:  # with a gradient scaler, a fused optimizer skips the update
            self._good[index] = (existing == 0).reshape(())
        if self._movement is not None:
            rows = zip(held, gradients, strict=True)
            known = {names.get(id(p), ""): (g, options[id(p)].sign) for p, g in rows}
            self._decide(index, held, norms, self._project(index, known, scale))

    def good(self, index: int) -> Tensor | bool:
        """Return whether an optimizer's next or last update happens, without waiting."""
        good = self._good.get(index, True)
        return bool(good) if isinstance(good, Tensor) and good.device.type == "cpu" else good

    def count_update(self, index: int) -> None:
        """Count an update of one optimizer, if it had gradients."""
        if self._has_gradients:
            self.calls[index] += 1
        self.active = None

    def open_updates(
        self,
        groups: Sequence[Group],
        options: Mapping[int, Options],
        good: Tensor | bool,
        *,
        correct: bool,
    ) -> None:
        """Average the gradients of groups and find their corrected directions, before an update."""
        opened = [g.open(self._optimizer, options, good, correct=correct) for g in groups]
        self._updates = [update for update in opened if update is not None]

    def learn(self, index: int, options: Mapping[int, Options]) -> None:
        """Correct the update that one optimizer has made, and learn its displacement."""
        good, updates = self.good(index), self._updates
        self._updates = []
        if good is False:
            return
        movement: WeightDelta | None = None
        if self._movement is not None and self.calls[index] == 1:
            movement = self._movement.delta
        for update in updates:
            update.group.close(update, options, good, movement, self._learned)
            self.corrected |= update.corrects

    def close_update(self, index: int) -> None:
        """After an update, undo its part of the predicted steps if they do not stand."""
        good = self._good.get(index, True)
        if self._movement is not None and self._forecast is not None and self.calls[index] == 1:
            rows = enumerate(zip(self._movement.delta.names, self._forecast.owners, strict=True))
            own = {k: name in self._reached for k, (name, owner) in rows if owner == index}
            if left := [k for k, reached in own.items() if not reached]:  # inside the step
                self._movement.undo_after_writes(left)
            if good is not True:
                self._movement.undo(good, [k for k, reached in own.items() if reached])
                self._buffers.undo_changes(good)
            if isinstance(good, Tensor):
                self._flags.append(good)
        self._good.pop(index, None)  # only the first update of a full step verifies

    def close(self, loss: Tensor | float | None) -> None:
        """Close the step, and undo predicted movement that no update has verified."""
        self.observe_loss(loss)
        if self._movement is not None and (unseen := self._unverified()):
            self.held = self.held or NO_UPDATE
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
        movement = self._movement
        if movement is not None:
            self.held = reason
            for index in [k for k in self._good if self.calls[k]]:
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

    def packed(self, *, stop: bool) -> tuple[dict[str, Any], Tensor]:
        """Pack all measurements for :func:`hybrid_predict.measurement.unpack`.

        Returns:
            A tag of primitives, and a flat tensor of numbers.
        """
        gradients = self._gradients
        about = {
            "step": self.number,
            "predicted": self.predicted,
            "warmup": self.phase is Phase.WARMUP,
            "limits": list(self.limits),
            "held": self.held,
        }
        values = pack(
            about,
            good=self._flags,
            loss=self._loss,
            stop=stop,
            norms={name: gradient.norm for name, gradient in gradients.items()},
            owners=[gradient.owner for gradient in gradients.values()],
            moved=self._moved,
            counts=shards.norm_factors([gradient.parameter for gradient in gradients.values()]),
            windows=self._learned.windows,
            slopes=self._learned.slopes,
        )
        self.reported = True
        return values

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
        """Return the positions in the open movement of tensors whose optimizer has not updated."""
        if self._movement is None or self._forecast is None:
            return []
        return [k for k, owner in enumerate(self._forecast.owners) if not self.calls[owner]]

    def _undo_members(self, movement: Movement, members: list[int]) -> None:
        if members:
            movement.undo_after_writes(members)
            self._buffers.undo_changes(False)

    def _project(
        self, index: int, gradients: dict[str, tuple[Tensor, float]], scale: Tensor | None
    ) -> list[Tensor]:
        """Return lengths of one optimizer's movement, and store its products with the gradients."""
        assert self._movement is not None and self._forecast is not None
        delta, owners, drifts = self._movement.delta, *self._forecast[1:3]
        columns = zip(delta.names, delta.directions, delta.factors, drifts, owners, strict=True)
        rows = [(n, d, f, drift) for n, d, f, drift, owner in columns if owner == index]
        norms = lists.norms([direction for _, direction, _, _ in rows])
        lengths = list(lists.scaled(norms, [lists.size(factor) for _, _, factor, _ in rows]))
        met = [k for k, (name, *_) in enumerate(rows) if name in gradients]
        sides = [(*gradients[rows[k][0]], *rows[k][1:3]) for k in met]
        dots = lists.dots([g.reshape(d.shape) for g, _, d, _ in sides], [d for _, _, d, _ in sides])
        if scale is not None:
            dots = dots / scale.to(dots.device)
        slopes = lists.scaled(dots, [sign * factor for _, sign, _, factor in sides]).unbind()
        for k, dot in zip(met, slopes, strict=True):
            self._moved[rows[k][0]] = Moved(lengths[k], rows[k][3], dot)
        return lengths

    def _decide(
        self, index: int, held: list[Tensor], norms: list[Tensor], lengths: list[Tensor]
    ) -> None:
        sharded = any(map(shards.is_sharded, self._optimizer.parameters(index)))
        total, finite = _agreed(held, norms, lengths, sharded)
        loss_limit, limit = self.limits[0], self.limits[1 + index]
        known = self._loss if ranks.size() == 1 else None
        good = finite & sound(total, limit, known, loss_limit)
        if self._optimizer.holds_on_device(index):
            self._good[index] = good = good & self._good.get(index, True)
            self._optimizer.hold_on_device(index, good)
        elif not bool(good):
            self._good[index] = False
            loss = None if self._loss is None else float(self._loss)
            self.held = cause(float(total), limit, loss, loss_limit)
            self._optimizer.hold_back(index)


def _agreed(
    held: Sequence[Tensor], norms: Sequence[Tensor], lengths: Sequence[Tensor], sharded: bool
) -> tuple[Tensor, Tensor]:
    """Return the norm of all gradients, and whether all lengths are finite, equal on all ranks."""
    numbers = [*norms, *lengths] or [torch.zeros(())]
    flat = torch.stack([as_scalar(x, numbers[0].device) for x in numbers])
    own, finite = flat[: len(norms)], flat[len(norms) :].isfinite().all()
    if sharded:  # gradients of full parameters are equal on all ranks already
        counts = shards.norm_factors(held)
        parts = own if counts is None else lists.scaled(own, counts)
        own, spoiled = ranks.combine(parts, (~finite).int()[None])
        finite = spoiled[0] == 0
    return torch.linalg.vector_norm(own), finite
