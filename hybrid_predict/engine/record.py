"""What the engine tells about one full step."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybrid_predict.accounts.clock import Phase
from hybrid_predict.accounts.html import table
from hybrid_predict.model.gradients import GradientInfo
from hybrid_predict.verify.judge import Verdict


@dataclass(frozen=True)
class StepRecord:
    """One full step, as :meth:`HybridEngine.after_step` reports it.

    Measurements are read ``lag`` full steps late (0 on the CPU), so ``loss``, ``verdict`` and
    ``gradients`` are those of full step ``read_step``.

    Args:
        step: Number of this full step, from 1.
        phase: The phase it ran in; ``predict`` if predicted steps came right before it.
        ticks: Steps that the run advanced: 1, and one more for each predicted step whose standing
            verdict was read in this call. Step the learning-rate scheduler as often.
        predicted: Predicted steps taken right before this full step.
        read_step: The full step that the measurements are about; None if none was read.
        verdict: What that full step decided about the predicted steps before it, None without any.
        skill: Latest known skill over all kinds, None if it is not known.
        loss: Training loss of ``read_step``, None if unknown.
        gradients: Its gradients as floats by parameter name, None if they were not measured.
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

    def __str__(self) -> str:
        """The step in one line, what is not known left out."""
        parts = [f"full step {self.step} ({self.phase.value})"]
        if self.predicted:
            parts.append(f"{self.predicted} predicted before it")
        if self.verdict is not None:
            where = "" if self.read_step == self.step else f" (full step {self.read_step})"
            parts.append(f"{self.verdict.value}{where}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.skill is not None:
            parts.append(f"skill {self.skill:.2f}")
        return ", ".join(parts)

    def _repr_html_(self) -> str:
        """The step as a table, what is not known left out, in a notebook."""
        known = {
            "phase": self.phase.value,
            "ticks": self.ticks,
            "predicted before it": self.predicted,
            "verdict": self.verdict and self.verdict.value,
            "loss": None if self.loss is None else f"{self.loss:.4g}",
            "skill": None if self.skill is None else f"{self.skill:.2f}",
        }
        rows = {name: str(value) for name, value in known.items() if value is not None}
        return table(f"Full step {self.step}", rows)
