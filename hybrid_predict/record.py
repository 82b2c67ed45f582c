"""The record of one full step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from hybrid_predict.policy.schedule import Phase as Phase
from hybrid_predict.policy.verdict import Verdict
from hybrid_predict.torch.gradients import GradientInfo


@final
@dataclass(frozen=True)
class StepRecord:
    """The record of one full step, returned by :meth:`HybridEngine.after_step`.

    On an accelerator, losses and gradients of most full steps are not read at once, so that the
    host does not wait for the device; ``loss`` and ``gradients`` are None then. Gradients are read
    in verifying steps, and the loss with them if it is known before the update.

    Args:
        step: Number of this full step, from 1.
        phase: Its phase; ``predict`` if predicted steps came right before it.
        ticks: Number of steps that the run advanced: 1, plus the predicted steps that stand; 0
            after the run's last step. Call ``scheduler.step()`` as often.
        predicted: Number of predicted steps taken right before this full step.
        verdict: Verdict on these predicted steps, or None if there were none.
        skill: Latest skill over all kinds, or None if it is not known yet.
        loss: Training loss, or None if it is unknown.
        gradients: Norms and alignments by parameter name, as floats, or None if they are unknown.
        length: Length of each of the predicted steps, in lengths of the drift at its learning rate;
            None if there were none.
        stop: Whether any rank was asked to stop, as far as it was read; the same on all ranks.
    """

    step: int
    phase: Phase
    ticks: int
    predicted: int = 0
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
            long = "" if self.length is None else f", length {self.length:.2f}"
            parts.append(f"{self.verdict.value}{long}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.skill is not None:
            parts.append(f"skill {self.skill:.2f}")
        return ", ".join(parts)
