"""The ledger of a run, its costs and savings; and the record of each full step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.policy.overfitting import OVERFITS, REMEDY
from hybrid_predict.policy.policy import UNPREDICTED
from hybrid_predict.policy.schedule import Phase as Phase

if TYPE_CHECKING:
    from torch import Tensor

    from hybrid_predict.policy.verdict import Verdict


@final
@dataclass(repr=False)
class SavingsLedger:
    """Counts full and predicted steps, and the seconds and operations that they took.

    Seconds are measured on the host, without waiting for a device. On an accelerator they say how
    long the host was busy, not how long the device worked. Operations are those of floating-point
    numbers, None if they were not counted.
    """

    full_steps: int = 0  #: Full steps done: forward + backward + update.
    steps: int = 0  #: Steps done: full steps plus predicted steps that stand.
    corrected_steps: int = 0  #: Full steps with corrected updates, of each matrix in its turn.
    predicted_steps: int = 0  #: Predicted steps that stand.
    undone_steps: int = 0  #: Predicted steps that were undone.
    skill: float | None = None  #: Latest skill over all kinds, or None if it is not known yet.
    predicted_length: float = 0.0  #: Total length of predicted steps that stand, in drifts.
    #: By kind: ``mean`` skill, its ``lower`` bound, number of ``windows``; ``length`` of the next
    #: predicted step, in drifts; ``persistence`` of forecasts, and ``advance`` in drifts per full
    #: step, 0 where the run does not decide how far forecasts lead.
    skills: dict[str, dict[str, float]] = field(default_factory=dict)
    full_seconds: float = 0.0  #: Seconds in the user's part of full steps.
    #: Those of the first full step, which may compile the model: predicted steps do not save them.
    startup_seconds: float = 0.0
    #: Seconds for measuring gradients, correcting updates, and verdicts on predicted steps.
    correct_seconds: float = 0.0
    predict_seconds: float = 0.0  #: Seconds for making predicted steps, and learning from steps.
    flops_per_step: int | None = None  #: Operations of one plain full step.
    #: Operations that correcting adds to a full step, as many per rank as that with most has.
    flops_per_correction: int | None = None
    #: The best validation so far: name of the ``metric``, its ``value``, and the ``step`` and the
    #: number of ``full_steps`` after which it was measured. None before the first one.
    best: dict[str, Any] | None = None
    #: What a user should know about: ``reason``, number of the first full ``step`` and of the
    #: ``last`` one, and ``count``.
    events: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"SavingsLedger({self})"

    def __str__(self) -> str:
        """Return one line with steps, validation, seconds and skill; lost seconds come first."""
        undone = f" ({self.undone_steps:,} more undone)" if self.undone_steps else ""
        steps = f"{self.full_steps:,} full + {self.predicted_steps:,} predicted{undone}"
        steps += f" = {self.steps:,} steps"
        if self.predicted_steps:
            steps += f", {percent(self.saved_steps_fraction)} of them predicted"
        parts = [steps, self.best_validation]
        # Without predicted steps every overhead is time lost; a small one may be noise.
        if self.full_seconds and (self.predicted_steps or self.overhead_fraction > 0.05):
            if self.estimated_seconds_saved < 0:
                parts.insert(0, f"took longer, {self.host_time}")
            else:
                parts.append(self.host_time)
        if self.full_seconds:
            share = percent(self.overhead_fraction)
            parts.append(f"overhead {share} of the host seconds of full steps")
        if self.skill is not None:
            parts.append(f"skill of forecasts {self.skill:.2f} (1 is perfect, 0 is chance)")
        return "; ".join(filter(None, parts))

    def count_predicted(self, number: int, length: float | None) -> None:
        """Count predicted steps that stand, each of a length in drifts; None is the mean one."""
        if length is None:
            length = self.mean_length or 0.0
        self.predicted_length += number * length
        self.predicted_steps += number

    @property
    def best_validation(self) -> str:
        """The best validation in words; empty before the first one."""
        if self.best is None:
            return ""
        where = f"after {self.best['step']:,} steps, {self.best['full_steps']:,} of them full"
        return f"best {self.best['metric']} {self.best['value']:.4g} {where}"

    def keep_best(self, metric: str, value: float, *, larger_is_better: bool) -> None:
        """Keep the value of a validation if it is finite, and the best so far."""
        sign = -1.0 if larger_is_better else 1.0
        better = self.best is None or sign * value < sign * self.best["value"]
        if better and math.isfinite(value):
            places = {"step": self.steps, "full_steps": self.full_steps}
            self.best = {"metric": metric, "value": value, **places}

    @property
    def mean_length(self) -> float | None:
        """Mean length of the predicted steps that stand, in lengths of the drift; None without."""
        return self.predicted_length / self.predicted_steps if self.predicted_steps else None

    @property
    def saved_steps_fraction(self) -> float:
        """Share of the steps that were not full steps, in [0, 1)."""
        return 1.0 - self.full_steps / self.steps if self.steps else 0.0

    @property
    def overhead_seconds(self) -> float:
        """Host seconds spent in the plug-in."""
        return self.correct_seconds + self.predict_seconds

    @property
    def overhead_fraction(self) -> float:
        """Host seconds in the plug-in per host second in full steps."""
        return self.overhead_seconds / self.full_seconds if self.full_seconds else 0.0

    @property
    def plain_seconds(self) -> float:
        """Seconds of the run if every predicted step were a full step, as long as a later one."""
        later = self.full_steps - (self.startup_seconds > 0)
        mean = (self.full_seconds - self.startup_seconds) / later if later else 0.0
        return self.full_seconds + mean * (self.steps - self.full_steps)

    @property
    def estimated_seconds_saved(self) -> float:
        """Host seconds that plain training would have taken more; negative if it took less."""
        return self.plain_seconds - self.full_seconds - self.overhead_seconds

    @property
    def host_time(self) -> str:
        """Seconds that the run took on the host, and those of as many full steps by estimate."""
        took = duration(self.full_seconds + self.overhead_seconds)
        return f"{took} on the host, {duration(self.plain_seconds)} plain by estimate"

    def record(self, step: int, reason: str) -> bool:
        """Record an event; return True if it is new, so that the caller logs it once."""
        for event in self.events:
            if event["reason"] == reason:
                event["count"] += 1
                event["last"] = step
                return False
        self.events.append({"step": step, "last": step, "reason": reason, "count": 1})
        return True

    def last_event(self, words: str) -> tuple[int, str]:
        """Return first full step and reason of the last event with these words; 0, "" without."""
        found = ((event["step"], event["reason"]) for event in reversed(self.events))
        return next(((step, reason) for step, reason in found if words in reason), (0, ""))

    def copy(self) -> SavingsLedger:
        """Return a copy that the run does not change, in much less time than ``deepcopy``."""
        skills = {kind: dict(skill) for kind, skill in self.skills.items()}
        best = None if self.best is None else dict(self.best)
        events = [dict(event) for event in self.events]
        return replace(self, skills=skills, best=best, events=events)

    def summary(self) -> dict[str, Any]:
        """Return counts and derived figures as plain data."""
        return {**vars(self.copy()), **{name: getattr(self, name) for name in _DERIVED}}

    def load(self, data: dict[str, Any]) -> None:
        """Load a :meth:`summary` into this ledger."""
        vars(self).update(vars(self.from_dict(data)))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SavingsLedger:
        """Read a ledger from :meth:`summary`; KeyError if a number is missing."""
        return cls(**{each.name: data[each.name] for each in fields(cls)}).copy()


FELL_BACK = "fell back to plain training: "
"""Beginning of the event of the return to plain training."""

_DERIVED = (
    "saved_steps_fraction",
    "mean_length",
    "overhead_fraction",
    "estimated_seconds_saved",
)
"""Figures that :meth:`SavingsLedger.summary` adds to the counts."""


def remarks(ledger: SavingsLedger) -> list[str]:
    """Return why a run fell back or predicted nothing, and that it has overfitted, if it did."""
    step, fell_back = ledger.last_event(FELL_BACK)
    told = [f"plain training since full step {step:,} (the warning there says why)"]
    if not fell_back:
        told = [] if ledger.predicted_steps else [ledger.last_event(UNPREDICTED)[1]]
    if ledger.last_event(OVERFITS)[1]:
        told.append(f"it has overfitted ({REMEDY})")
    return [*filter(None, told)]


@final
@dataclass(frozen=True)
class GradientInfo:
    """Loss and gradients of one full step, by parameter name.

    All values are floats, or 0-dim tensors on the device if they have not been read yet.
    """

    loss: float | Tensor  #: Training loss; nan if it is unknown.
    #: Euclidean norm of all gradients together, as the optimizer applies them.
    total_norm: float | Tensor
    #: Euclidean norm of each gradient.
    norms: Mapping[str, float | Tensor] = field(default_factory=dict)
    #: :math:`-\langle g, \hat\Delta \rangle / (\|g\| \|\hat\Delta\|)` of each parameter that
    #: predicted steps moved right before; positive if they moved downhill.
    alignments: Mapping[str, float | Tensor] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class StepRecord:
    """The record of one full step, returned by :meth:`HybridEngine.after_step`.

    On an accelerator, losses and gradients of most full steps are not read at once, so that the
    host does not wait for the device; ``loss`` and ``gradients`` are None then. Gradients are read
    in verifying steps, and the loss with them if it is known before the update.
    """

    step: int  #: Number of this full step, from 1.
    phase: Phase  #: Its phase; ``predict`` if predicted steps came right before it.
    #: Number of steps that the run advanced: 1, plus the predicted steps that stand; 0 after the
    #: run's last step. Call ``scheduler.step()`` as often.
    ticks: int
    predicted: int = 0  #: Number of predicted steps taken right before this full step.
    verdict: Verdict | None = None  #: Verdict on these predicted steps.
    skill: float | None = None  #: Latest skill over all kinds, or None if it is not known yet.
    loss: float | None = None  #: Training loss, or None if it is unknown.
    #: Norms and alignments by parameter name, as floats, or None if they are unknown.
    gradients: GradientInfo | None = field(default=None, repr=False)
    length: float | None = None  #: Length of each of the predicted steps, in drifts at its rate.
    stop: bool = False  #: Whether any rank was asked to stop, as far as it was read.

    def __str__(self) -> str:
        """Return the step in one line, without unknown values."""
        parts = [
            f"full step {self.step} ({self.phase.value})",
            f"{self.predicted} predicted before it" if self.predicted else "",
            "" if self.verdict is None else self.verdict.value,
            "" if self.verdict is None or self.length is None else f"length {self.length:.2f}",
            "" if self.loss is None else f"loss {self.loss:.4g}",
            "" if self.skill is None else f"skill {self.skill:.2f}",
        ]
        return ", ".join(filter(None, parts))


def percent(share: float) -> str:
    """Format a share as whole percent."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Format seconds for people: ``1.7 ms``, ``0.42 s``, ``12 s``, ``4.5 min``, ``3.2 h``."""
    if seconds < 120:
        number, unit = (1e3 * seconds, "ms") if 0 < seconds < 0.1 else (seconds, "s")
        return f"{number:.0f} {unit}" if number >= 10 else f"{float(f'{number:.2g}'):g} {unit}"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
