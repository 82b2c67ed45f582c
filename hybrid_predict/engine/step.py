"""The open full step: its predicted steps, its measurements, and their undo."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.accounts.clock import Phase
from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.forecast.forecast import Forecast
from hybrid_predict.forecast.group import TensorGroup
from hybrid_predict.tensors import TorchBackend, is_half, ranks, shards
from hybrid_predict.torch.buffers import BufferTracker
from hybrid_predict.torch.deltas import Movement, WeightDelta
from hybrid_predict.torch.gradients import dense_gradient
from hybrid_predict.torch.optimizer import OptimizerWrapper
from hybrid_predict.torch.parameters import ParameterMapper
from hybrid_predict.torch.reading import VerifiedReads
from hybrid_predict.verify.judge import cause
from hybrid_predict.verify.measurement import Moved, as_scalar, pack
from hybrid_predict.verify.monitor import Monitor

NO_UPDATE = "no update followed the predicted steps"
"""Reason for undoing predicted steps if the optimizer, or a gradient scaler, skipped the update."""

UNCOUNTED = "a state was saved between an update and after_step(), so it does not count the update"
"""Event for a saved state that does not go with the weights."""

LOADED = "weights were loaded in a verifying step"
"""Reason for undoing predicted steps if a state dict was loaded before they were verified."""


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
        self._has_gradients = False
        self.hook_seconds = self.predict_seconds = self.opened_at = 0.0
        self._optimizer, self._buffers = optimizer, buffers
        self._movement: Movement | None = None
        self._reads: VerifiedReads | None = None
        self._owners: list[int] = []
        self._drifts: list[Tensor] = []
        self._limits: list[float] = []
        self._good: dict[int, Tensor | bool] = {}
        self._flags: list[Tensor] = []
        self._loss: Tensor | float | None = None
        self._norms: dict[str, Tensor] = {}
        self._norm_owners: list[int] = []
        self._measured: list[Tensor] = []
        self._moved: dict[str, Moved] = {}
        self._windows: list[tuple[list[Any], Tensor]] = []
        self._slopes: list[Tensor] = []

    def predict(
        self,
        mapper: ParameterMapper,
        forecast: Forecast,
        count: int,
        carries: dict[str, Tensor],
    ) -> None:
        """Take ``count`` predicted steps at once.

        Args:
            mapper: The model's parameters.
            forecast: The movement of one predicted step.
            count: Number of predicted steps, at least 1.
            carries: Kahan compensation of half-precision weights, by name.
        """
        self._buffers.copy()
        delta, self._owners, self._drifts = forecast
        self.predicted = count
        self._movement = mapper.movement(delta.scaled(count) if count > 1 else delta, carries)
        copied, undo = self._buffers.copies, partial(self._withdraw, LOADED)
        self._reads = mapper.reads(self._movement, copied, self._unverified, undo)
        self._reads.open()
        self._movement.apply()

    def observe_loss(self, loss: object) -> None:
        """Store the loss, if it is known before the update."""
        self._loss = self._loss if loss is None else as_scalar(loss)

    def set_limits(self, monitor: Monitor) -> None:
        """Set the limits of loss and gradient norms above which predicted steps are undone."""
        norms = [monitor.norm_limit(k) for k in range(len(self._optimizer.optimizers))]
        self._limits = [monitor.loss_limit, *norms]

    @property
    def with_gradient(self) -> set[int]:
        """Parameters that have had a gradient, by ``id``."""
        return {id(p) for p in self._measured}

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
        """Forget what was measured and decided for an update that has raised."""
        self.active = None
        if self._good.pop(index, None) is not None:
            self.held = ""
        if self.calls[index]:  # what was measured is of an earlier update, which was made
            return
        columns = zip(self._norms.items(), self._norm_owners, self._measured, strict=True)
        kept = [each for each in columns if each[1] != index]
        self._norms = dict(norm for norm, _, _ in kept)
        self._norm_owners = [owner for _, owner, _ in kept]
        self._measured = [p for _, _, p in kept]
        self._moved = {n: moved for n, moved in self._moved.items() if n in self._norms}

    def measure(self, index: int, names: dict[int, str], loss: object) -> None:
        """Measure the gradients of one optimizer, and judge the predicted steps by them.

        With a fused optimizer the verdict stays on the device. Otherwise one flag is read, and the
        update is held back if the predicted steps do not stand.

        Args:
            index: Number of the optimizer.
            names: Names of the parameters by ``id``.
            loss: Result of the step's closure, or None.
        """
        held = [p for p in self._optimizer.parameters(index) if p.grad is not None]
        gradients = [dense_gradient(p) for p in held]
        scale = getattr(self._optimizer.optimizers[index], "grad_scale", None)
        norms = _norms(gradients, scale)
        self.observe_loss(loss)
        self._has_gradients = bool(held)
        if self.calls[index]:
            return
        for p, norm in zip(held, norms, strict=True):
            name = names.get(id(p), f"unnamed.{len(self._norms)}")
            if name in self._norms:  # two optimizers share the parameter
                continue
            self._norms[name] = norm
            self._norm_owners.append(index)
            self._measured.append(p)
        existing = getattr(self._optimizer.optimizers[index], "found_inf", None)
        if existing is not None:  # with a gradient scaler, a fused optimizer skips the update
            self._good[index] = (existing == 0).reshape(())
        if self._movement is not None:
            pairs = {names.get(id(p), ""): g for p, g in zip(held, gradients, strict=True)}
            options = self._optimizer.options(index)
            signs = {names.get(id(p), ""): options[id(p)].sign for p in held}
            lengths = self._project(index, pairs, signs, scale)
            self._decide(index, held, norms, lengths)

    def good(self, index: int) -> Tensor | bool:
        """Whether an optimizer's next or last update happens; does not wait for the device."""
        good = self._good.get(index, True)
        return bool(good) if isinstance(good, Tensor) and good.device.type == "cpu" else good

    def count_update(self, index: int) -> None:
        """Count an update of one optimizer, if it had gradients."""
        if self._has_gradients:
            self.calls[index] += 1
        self.active = None

    def movement(self, index: int) -> WeightDelta | None:
        """The predicted movement that the update just made verifies, if any."""
        moved = self._movement if self.calls[index] == 1 else None
        return None if moved is None else moved.delta

    def add_learned(self, group: TensorGroup) -> None:
        """Add what a group has measured in the update just made."""
        self._windows += group.pop_window()
        self._slopes += group.slopes
        group.slopes = []

    def close_update(self, index: int) -> None:
        """After an update, undo its part of the predicted steps if they do not stand."""
        good = self._good.get(index, True)
        if self._movement is not None and self.calls[index] == 1:
            if good is not True:
                members = [k for k, owner in enumerate(self._owners) if owner == index]
                self._movement.undo(good, members)
                self._buffers.undo_changes(good)
            if isinstance(good, Tensor):
                self._flags.append(good)
        self._good.pop(index, None)  # only the first update of a full step verifies

    def close(self, loss: Tensor | float | None) -> None:
        """Close the step, and undo predicted movement that no update has verified.

        Args:
            loss: The loss that the loop reports, or None if it is unknown.
        """
        self.observe_loss(loss)
        if self._movement is not None and (unseen := self._unverified()):
            self.held = self.held or NO_UPDATE
            self._undo_members(self._movement, unseen)
        self._movement = None
        self._end_reads()
        self._buffers.free()

    def undo(self, reason: str, coming: int | None = None) -> None:
        """Undo the predicted steps at any point of the full step.

        Args:
            reason: Reason for the verdict.
            coming: Number of the optimizer that is about to update, or None.
        """
        self._withdraw(reason, coming)
        self._end_reads()

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
        """Put rounding errors back to those of verified weights while a state is saved.

        Args:
            record_event: Records what a state that is saved now does not have.
        """
        if self.has_updated:
            record_event(UNCOUNTED, logging.WARNING, self.number)
        movement = self._movement
        return nullcontext() if movement is None else movement.without_carries(self._unverified())

    def packed(self, warmup: bool) -> tuple[dict[str, Any], Tensor]:
        """Pack all measurements for :func:`hybrid_predict.verify.measurement.unpack`.

        Args:
            warmup: Whether the step belongs to the warm-up.

        Returns:
            A tag of primitives, and a flat tensor of numbers.
        """
        about = {
            "step": self.number,
            "predicted": self.predicted,
            "warmup": warmup,
            "limits": list(self._limits),
            "held": self.held,
        }
        values = pack(
            about,
            good=self._flags,
            loss=self._loss,
            norms=self._norms,
            owners=self._norm_owners,
            moved=self._moved,
            roots=shards.norm_factors(self._measured),
            windows=self._windows,
            slopes=self._slopes,
        )
        self.reported = True
        return values

    def add_seconds(self, ledger: SavingsLedger, closed_at: float, ended_at: float) -> None:
        """Add the host seconds of the step to the ledger: user code, corrections, and predictions.

        Args:
            ledger: The ledger.
            closed_at: Time at which the loop closed the step.
            ended_at: Time at which the plug-in was done with it.
        """
        in_hooks, around = self.hook_seconds, self.predict_seconds + ended_at - closed_at
        ledger.full_seconds += max(0.0, closed_at - self.opened_at - in_hooks)
        ledger.correct_seconds += max(0.0, in_hooks)
        ledger.predict_seconds += max(0.0, around)

    def _unverified(self) -> list[int]:
        """Positions in the open movement of tensors whose optimizer has not updated."""
        if self._movement is None:
            return []
        return [k for k, owner in enumerate(self._owners) if not self.calls[owner]]

    def _undo_members(self, movement: Movement, members: list[int]) -> None:
        if members:
            movement.undo_after_writes(members)
            self._buffers.undo_changes(False)

    def _project(
        self,
        index: int,
        gradients: dict[str, Tensor],
        signs: dict[str, float],
        scale: Tensor | None,
    ) -> list[Tensor]:
        """Return lengths of one optimizer's movement, and store its products with the gradients."""
        assert self._movement is not None
        delta = self._movement.delta
        columns = zip(delta.names, delta.directions, delta.factors, self._drifts, self._owners,
                      strict=True)  # fmt: skip
        rows = [(n, d, f, drift) for n, d, f, drift, owner in columns if owner == index]
        backend = TorchBackend()
        norms = backend.norms([d for _, d, _, _ in rows]).unbind()
        sizes = [f.abs() if isinstance(f, Tensor) else abs(f) for _, _, f, _ in rows]
        lengths = [size * norm for size, norm in zip(sizes, norms, strict=True)]
        met = [k for k, (name, *_) in enumerate(rows) if name in gradients]
        own = [gradients[rows[k][0]].reshape(rows[k][1].shape) for k in met]
        dots = backend.dots(own, [rows[k][1] for k in met])
        if scale is not None:
            dots = dots / scale.to(dots.device)
        for k, dot in zip(met, dots.unbind(), strict=True):
            name, _, factor, drift = rows[k]
            self._moved[name] = Moved(lengths[k], drift, signs[name] * factor * dot)
        return lengths

    def _decide(
        self, index: int, held: list[Tensor], norms: list[Tensor], lengths: list[Tensor]
    ) -> None:
        sharded = any(map(shards.is_sharded, self._optimizer.parameters(index)))
        total, finite = _agreed(held, norms, lengths, sharded)
        limit = self._limits[1 + index]
        good = finite & total.isfinite() & (total <= limit)
        if self._loss is not None and ranks.size() == 1:
            good = good & _within(self._loss, self._limits[0])
        if self._optimizer.holds_on_device(index):
            self._good[index] = good = good & self._good.get(index, True)
            self._optimizer.hold_on_device(index, good)
        elif not bool(good):
            self._good[index] = False
            known = None if self._loss is None else float(self._loss)
            self.held = cause(float(total), limit, known, self._limits[0])
            self._optimizer.hold_back(index)


def _norms(gradients: Sequence[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Return the Euclidean norm of every gradient's local shard, 0-dim."""
    if not gradients:
        return []
    flat = [torch.view_as_real(g) if g.is_complex() else g for g in gradients]
    # The norm may exceed the range of 16-bit floats, which ends at 65504.
    half = any(map(is_half, flat)) and not any(g.dtype == torch.float64 for g in flat)
    norms = list(torch._foreach_norm(flat, 2, torch.float32 if half else None))
    return norms if scale is None else [n / scale.to(n.device) for n in norms]


def _within(loss: Tensor | float, limit: float) -> Tensor | bool:
    """Whether a loss is finite and at most the limit; a number is not copied to the device."""
    if isinstance(loss, Tensor):
        return loss.isfinite() & (loss <= limit)
    return math.isfinite(loss) and loss <= limit


def _agreed(
    held: Sequence[Tensor], norms: Sequence[Tensor], lengths: Sequence[Tensor], sharded: bool
) -> tuple[Tensor, Tensor]:
    """Return the norm of all gradients, and whether all lengths are finite, equal on all ranks."""
    found = [*norms, *lengths] or [torch.zeros(())]
    flat = torch.stack([x.to(found[0].device, torch.float32) for x in found])
    own, moved = flat[: len(norms)], flat[len(norms) :]
    spoiled = (~moved.isfinite()).sum()
    if sharded:  # gradients of full parameters are equal on all ranks already
        roots = shards.norm_factors(held)
        parts = own if roots is None else torch.stack(torch._foreach_mul(list(own), roots))
        own, spoiled = ranks.combine(parts, spoiled[None])
    return torch.linalg.vector_norm(own), (spoiled == 0).reshape(())
