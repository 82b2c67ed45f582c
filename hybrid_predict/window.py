"""What the engine knows about the full step under way, and what it tells about one that is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hybrid_predict import distributed
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
    supported: float = 0.0
    compares: bool = False
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
    row_lengths: list[Tensor] = field(default_factory=list)
    row_products: list[Tensor] = field(default_factory=list)
    lengths: list[Tensor] = field(default_factory=list)
    loss: Tensor | float | None = None
    residual: tuple[Tensor, Tensor] | None = None
    overlaps: list[Tensor] = field(default_factory=list)
    hook_seconds: float = 0.0
    opened_at: float = 0.0
    _measured: Tensor | None = None
    _known: tuple[int, Tensor, Tensor] | None = None

    @property
    def forecast(self) -> WeightDelta | None:
        """The forecast that was applied, None if none was."""
        return self.delta if self.applied else None

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
        norms, lengths, products = probe.products([parameters[i] for i in rows], directions)
        self.rows += rows
        self.row_norms.append(norms)
        self.row_lengths.append(lengths)
        self.row_products.append(products)

    def good(self) -> Tensor:
        """Whether the step may stand, a 0-dim bool on the gradients' device.

        Loss, gradients and forecast have to be finite on every rank, and loss and gradients of all
        ranks together within the limits of the step. With several ranks nothing may be measured
        after this call.
        """
        if distributed.size() > 1:
            return self.measurements()[2] > 0
        finite, total = self._of_gradients()
        loss = self._scalar(self.loss, 0.0)
        return finite & loss.isfinite() & self._within(loss, total)

    def measurements(self) -> Tensor:
        """Everything that was measured, packed into one flat tensor; see :func:`unpack`.

        With several ranks it is what they have measured together; the first call reduces it.
        """
        if self._measured is None:
            self._measured = self._measure()
        return self._measured

    def _of_gradients(self) -> tuple[Tensor, Tensor]:
        """Whether gradients and forecast are finite, and their total norm; computed once."""
        if self._known is None or self._known[0] != len(self.norms):
            norms = torch.stack(self.norms) if self.norms else torch.zeros(0)
            finite = torch.isfinite(torch.cat([norms, *self.row_lengths, *self.lengths])).all()
            total = torch.linalg.vector_norm(norms) if self.norms else None
            self._known = len(self.norms), finite, self._scalar(total, math.nan)
        return self._known[1:]

    def _within(self, loss: Tensor, total: Tensor) -> Tensor:
        """Whether the step's limits hold; what is unknown is within them."""
        return ~((loss > self.limits.loss) | (total > self.limits.norm))

    def _measure(self) -> Tensor:
        tiny = torch.finfo(torch.float32).tiny
        scores = [self._scalar(x, math.nan) for x in self.residual or (None, None)]
        overlaps = torch.stack(self.overlaps or [self._scalar(0.0, 0.0).expand(3)])
        losses = [self._scalar(self.loss, 0.0), self._scalar(float(self.loss is not None), 0.0)]
        finite, total = self._of_gradients()
        counts = [*losses, 1.0 - (finite & losses[0].isfinite()).float()]
        norms, sums = distributed.combine(
            torch.cat([torch.stack([total, *scores]), *self.row_norms, *self.row_lengths]),
            torch.cat([torch.stack(counts), overlaps.sum(0), *self.row_products]),
        )
        total, remainder, forecast = norms[:3]
        loss, spoiled = sums[0] / sums[1], sums[2]
        own, placed, both = sums[3:6]
        row_norms, row_lengths = norms[3:].view(2, -1)
        good = (spoiled == 0) & self._within(loss, total)
        head = [loss, total, good.float(), remainder / forecast.clamp_min(tiny)]
        cosine = both / (own.sqrt() * placed.sqrt())
        # A forecast of length zero, or that has replaced no update, adds nothing.
        novelty = (1.0 - cosine.square()).nan_to_num(0.0)
        head.append(novelty if self.compares else self._scalar(None, math.nan))
        alignments = -sums[6:] / (row_norms * row_lengths).clamp_min(tiny)
        return torch.cat([torch.stack(head), alignments])

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
            "supported": self.supported,
            "limits": [self.limits.loss, self.limits.norm],
            "warmup": self.phase is Phase.WARMUP,
            "rows": list(self.rows),
        }


def unpack(values: list[float], rows: list[int]) -> GradientInfo:
    """The inverse of :meth:`Window.measurements`, on the host, rows back in order."""
    loss, total, good, residual, novelty, *alignments = values
    order = sorted(range(len(rows)), key=rows.__getitem__)
    ordered = tuple(alignments[k] for k in order)
    return GradientInfo(loss, total, bool(good), residual, ordered, novelty)


def as_scalar(loss: object) -> Tensor | float | None:
    """A loss without its autograd history: a tensor's mean, a number, or None."""
    if isinstance(loss, Tensor):
        mean = loss.detach().float().mean()
        return distributed.whole(distributed.local(mean), mean)
    return float(loss) if isinstance(loss, (int, float)) else None
