"""What the engine knows about the full step under way, and what it tells about one that is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hybrid_predict.backends import TorchBackend
from hybrid_predict.divergence import Limits
from hybrid_predict.gradients import GradientInfo, GradientProbe
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.phases import Phase
from hybrid_predict.verification import Verdict


@dataclass(frozen=True)
class StepRecord:
    """One full step, as :meth:`HybridEngine.after_step` reports it.

    Statistics are read ``lag`` full steps late (0 on the CPU), so ``loss``, ``alignment``,
    ``verdict`` and ``residual`` are those of full step ``read_step``.

    Args:
        step: Number of this full step, from 1.
        phase: The phase it ran in.
        horizon: Mean horizon of its forecast in optimizer updates; 0 without a forecast.
        ticks: Equivalent steps that the clock advanced; step the scheduler as often.
        read_step: The full step that the statistics are about; None if none was read.
        loss: Its training loss, None if unknown.
        alignment: Its mean alignment, None if not measured.
        verdict: The verdict on its forecast, None if it had none.
        residual: Length of the residual over the forecast's, None if no score ended with it.
        finite: Whether its loss and gradients were, and within the limits that a step at a forecast
            point has; otherwise such a step was undone.
    """

    step: int
    phase: Phase
    horizon: float
    ticks: int
    read_step: int | None = None
    loss: float | None = None
    alignment: float | None = None
    verdict: Verdict | None = None
    residual: float | None = None
    finite: bool = True


@dataclass
class Window:
    """The full step between ``before_step`` and ``after_step``."""

    phase: Phase
    delta: WeightDelta | None = None
    horizon: float = 0.0
    applied: bool = False
    refused: str = ""
    sampled: bool = False
    limits: Limits = field(default_factory=Limits)
    moving: set[int] = field(default_factory=set)
    updated: set[int] = field(default_factory=set)
    with_gradient: set[int] = field(default_factory=set)
    norms: list[Tensor] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    row_norms: list[Tensor] = field(default_factory=list)
    row_alignments: list[Tensor] = field(default_factory=list)
    lengths: list[Tensor] = field(default_factory=list)
    loss: Tensor | float | None = None
    residual: Tensor | None = None
    hook_seconds: float = 0.0
    opened_at: float = 0.0

    def measure(self, probe: GradientProbe, parameters: Sequence[Tensor]) -> None:
        """Measure alignments where they are due, and else no more than whether the forecast is one.

        Args:
            probe: The gradients of one optimizer.
            parameters: The forecast parameters, in the order of ``delta``.
        """
        rows = [i for i, p in enumerate(parameters) if p in probe]
        if self.delta is None or not rows or not (self.sampled or self.applied):
            return
        directions = [self.delta.directions[i] for i in rows]
        if not self.sampled:
            self.lengths.append(TorchBackend().norms(directions))
            return
        norms, alignments = probe.alignments([parameters[i] for i in rows], directions)
        self.rows += rows
        self.row_norms.append(norms)
        self.row_alignments.append(alignments)

    def good(self) -> Tensor:
        """Whether the step may stand, a 0-dim bool on the gradients' device.

        Loss, gradients and forecast have to be finite, and within the limits of the step.
        """
        loss = self._scalar(self.loss, 0.0)
        numbers = [torch.stack([*self.norms, loss]), *self.row_alignments, *self.lengths]
        good = torch.isfinite(torch.cat(numbers)).all()
        if self.limits.loss < math.inf:
            good = good & (loss <= self.limits.loss)
        if self.limits.norm < math.inf and self.norms:
            good = good & (torch.linalg.vector_norm(torch.stack(self.norms)) <= self.limits.norm)
        return good

    def measurements(self) -> Tensor:
        """Everything that was measured, packed into one flat tensor; see :func:`unpack`."""
        unknown = float("nan")
        total = torch.linalg.vector_norm(torch.stack(self.norms)) if self.norms else None
        head = [
            self._scalar(self.loss, unknown),
            self._scalar(total, unknown),
            self.good().float(),
            self._scalar(self.residual, unknown),
        ]
        return torch.cat([torch.stack(head), *self.row_norms, *self.row_alignments])

    def _scalar(self, value: Tensor | float | None, default: float) -> Tensor:
        """A 0-dim 32-bit tensor on the gradients' device; only foreign tensors are copied."""
        device = self.norms[0].device if self.norms else None
        if isinstance(value, Tensor):
            return value.to(device, torch.float32)
        number = default if value is None else value
        return torch.full((), number, dtype=torch.float32, device=device)

    def tag(self, step: int) -> dict[str, Any]:
        """What has to be known about this step when its measurements are read."""
        return {
            "step": step,
            "forecast": self.delta is not None,
            "applied": self.applied,
            "refused": self.refused,
            "limits": [self.limits.loss, self.limits.norm],
            "warmup": self.phase is Phase.WARMUP,
            "rows": list(self.rows),
        }


def unpack(values: list[float], rows: list[int]) -> GradientInfo:
    """The inverse of :meth:`Window.measurements`, on the host, rows back in order."""
    loss, total, good, residual, *rest = values
    order = sorted(range(len(rows)), key=rows.__getitem__)
    norms, alignments = rest[: len(rows)], rest[len(rows) :]
    return GradientInfo(
        loss,
        total,
        bool(good),
        residual,
        tuple(norms[k] for k in order),
        tuple(alignments[k] for k in order),
    )


def as_scalar(loss: object) -> Tensor | float | None:
    """A loss without its autograd history: a tensor's mean, a number, or None."""
    if isinstance(loss, Tensor):
        return loss.detach().float().mean()
    return float(loss) if isinstance(loss, (int, float)) else None
