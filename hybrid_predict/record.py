"""The record of one full step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from hybrid_predict.rules.schedule import Phase as Phase
from hybrid_predict.rules.verdict import Verdict
from hybrid_predict.torch.gradients import GradientInfo


@final
@dataclass(frozen=True)
class StepRecord:
    """The record of one full step, returned by :meth:`HybridEngine.after_step`.

    Measurements are read ``lag`` full steps late (0 on the CPU): ``loss``, ``verdict`` and
    ``gradients`` belong to full step ``read_step``.

    Args:
        step: Number of this full step, from 1.
        phase: Its phase; ``predict`` if predicted steps came right before it.
        ticks: Number of steps that the run advanced: 1, plus the predicted steps that are known to
            stand since this call; 0 after the run's last step. Call ``scheduler.step()`` as often.
        predicted: Number of predicted steps taken right before this full step.
        read_step: Number of the full step that the measurements belong to, or None if none was
            read.
        verdict: Verdict of full step ``read_step`` on the predicted steps before it, or None if
            there were none.
        skill: Latest skill over all kinds, or None if it is not known yet.
        loss: Training loss of ``read_step``, or None if it is unknown.
        gradients: Norms and alignments of ``read_step`` by parameter name, as floats, or None if
            they were not measured.
        length: Length of each predicted step before full step ``read_step``, in lengths of the
            drift at its learning rate; None if there were none.
        stop: Whether any rank was asked to stop, up to ``read_step``; the same on all ranks.
    """

    step: int
    phase: Phase
    ticks: int
    predicted: int = 0
    read_step: int | None = None
    verdict: Verdict | None = None
    skill: float | None = None
    loss: float | None = None
    gradients: GradientInfo | None = field(default=None, repr=False)
    length: float | None = None
    stop: bool = False

    def __str__(self) -> str:
        """Return the step in one line, without unknown values."""
        parts = [f"full step {self.step} ({self.phase.value})"]
        if self.predicted:
            parts.append(f"{self.predicted} predicted before it")
        if self.verdict is not None:
            where = "" if self.read_step == self.step else f" (full step {self.read_step})"
            long = "" if self.length is None else f", length {self.length:.2f}"
            parts.append(f"{self.verdict.value}{long}{where}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.skill is not None:
            parts.append(f"skill {self.skill:.2f}")
        return ", ".join(parts)
