"""Tells from numbers that are read late when forecasts destabilise a run, and answers by grade."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hybrid_predict.checkpoint import whole
from hybrid_predict.errors import CheckpointError
from hybrid_predict.gradients import GradientInfo


class Answer(str, Enum):
    """What an alarm is answered with, by grade."""

    SHRINK = "horizons shrink"
    PAUSE = "forecasts pause"
    ROLL_BACK = "the step was put back to its base weights, and forecasts pause"


@dataclass(frozen=True)
class Limits:
    """Above these a full step at a forecast point is undone.

    Args:
        loss: In units of the loss.
        norm: Of the total gradient, as applied.
    """

    loss: float = math.inf
    norm: float = math.inf


@dataclass(frozen=True)
class Alarm:
    """One finding.

    Args:
        answer: What is done about it.
        reason: What was found and what the user can do, without numbers: the ledger counts by it.
        figures: The numbers, for the log.
    """

    answer: Answer
    reason: str
    figures: str


MOST_PAUSES = 3
"""The alarm after so many pauses hands over to plain training."""

REASONS = {
    "loss": "the loss at a forecast point stood far above its running mean; if it comes again, "
    "lower the learning rate or the longest horizon",
    "gradient": "the gradient at a forecast point was many times its usual length; clip "
    "gradients, or lower the longest horizon",
    "vanished": "gradients vanished while the loss did not fall; look for saturated or dead units, "
    "or lower the learning rate",
    "lost": "half of what the training loss had gained under forecasts was lost again; lower the "
    "learning rate or the horizon's floors",
    "uphill": "forecasts pointed steadily uphill; lower the horizon's floors, or choose another "
    "predictor",
    "nowhere": "forecasts had no share in the direction of any gradient; choose another predictor",
    "swinging": "forecasts pointed downhill and uphill in turn; lower the horizons",
    "residual": "what happened was many times a forecast's length away from it; lower the "
    "horizons, or choose another predictor",
}
"""What each alarm says to the user, by the name of its signal."""


class _Baseline:
    """Running mean and deviation of one number; outliers count no further than ``REACH``.

    Args:
        decay: Of the averages, per reading.
        rough: Deviation that is assumed at least, as a share of the mean's magnitude.
        least: Readings before it is judged by.
    """

    REACH = 6.0

    def __init__(self, decay: float = 0.95, rough: float = 0.0, least: int = 8) -> None:
        self._decay, self._rough, self._least = decay, rough, least
        self.mean, self._square, self._count = 0.0, 0.0, 0

    @property
    def known(self) -> bool:
        """Whether there were enough readings to judge by."""
        return self._count >= self._least

    @property
    def deviation(self) -> float:
        """The running standard deviation, never quite zero."""
        return max(math.sqrt(self._square), self._rough * abs(self.mean), 1e-30)

    def clipped(self, value: float) -> float:
        """The value as far as it counts."""
        reach = self.REACH * self.deviation if self.known else math.inf
        return min(self.mean + reach, max(self.mean - reach, value))

    def add(self, value: float) -> None:
        """Take one reading."""
        off = self.clipped(value) - self.mean if self._count else 0.0
        share = max(1.0 - self._decay, 1.0 / (self._count + 1))
        self.mean = self.mean + share * off if self._count else value
        self._square = (1.0 - share) * (self._square + share * off * off)
        self._count += 1

    def state_dict(self) -> list[float]:
        """Mean, square and count."""
        return [self.mean, self._square, self._count]

    def load_state_dict(self, state: list[float]) -> None:
        """Continue from a saved state."""
        mean, square, count = state
        if not (math.isfinite(mean) and math.isfinite(square) and square >= 0 and count >= 0):
            raise CheckpointError(
                f"state: expected finite baselines, got {state!r}. Resume from another checkpoint."
            )
        self.mean, self._square, self._count = float(mean), float(square), int(count)


class DivergenceMonitor:
    r"""Watches a run's readings and tells which answer they ask for.

    A reading of the loss :math:`L` alarms where it leaves its running mean :math:`\mu` and
    deviation :math:`\sigma` by

    .. math:: L - \mu > 6 \sigma \;\text{and}\; L - \mu > |\mu| / 2

    for the second time in 16 readings, since a hard batch now and then is no news, and the step is
    undone where it exceeds :math:`\mu + \max(12 \sigma, 3 |\mu|)`. The total gradient norm is
    judged by its logarithm in the same way, at factors of 16 and 100; norms below a hundredth of
    the baseline alarm only if the loss does not fall. Alignment alarms when its running mean is
    below -0.7 (uphill), when it stays zero (nowhere), and when successive ones have opposite signs
    (swinging). All of it is host arithmetic on numbers that are read anyway.

    A shrink that can shorten nothing, and every heavier alarm, pauses forecasts, each time for
    twice as many full steps; the alarm after :data:`MOST_PAUSES` pauses hands over to plain
    training. A long calm forgives.

    Args:
        patience: So many full steps with a running mean of the loss more than a fifth above where
            forecasts began hand over at once.
    """

    RISE, PAUSE, CALM, STEADY = 0.2, 16, 500, 16
    UPHILL, SWING, RESIDUAL, FACTOR = -0.7, -0.25, 10.0, 16.0

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._loss, self._norm = _Baseline(rough=0.02), _Baseline()
        self._align, self._swing = _Baseline(least=20), _Baseline(least=20)
        self._residual = _Baseline(decay=0.8)
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._levels: dict[str, float | None] = dict.fromkeys(_LEVELS)

    @property
    def limits(self) -> Limits:
        """From what loss and gradient norm on a step at a forecast point is undone."""
        loss = norm = math.inf
        if self._loss.known:
            above = max(12 * self._loss.deviation, 3 * abs(self._loss.mean))
            loss = self._loss.mean + above
        if self._norm.known:
            wide = max(8 * self._norm.deviation, math.log(100))
            norm = math.exp(min(700.0, self._norm.mean + wide))
        return Limits(loss, norm)

    @property
    def unpaid(self) -> str:
        """Why the run is to be handed over to plain training; empty if it is not."""
        if self._counts["pauses"] > MOST_PAUSES:
            return f"forecasts were paused {MOST_PAUSES} times and alarms came back"
        if self._counts["above"] >= self._patience:
            return "the training loss stands above where forecasts began"
        return ""

    def pausing(self, step: int) -> bool:
        """Whether full step number ``step`` is to be taken without a forecast."""
        return step <= self._counts["until"]

    def pause(self, step: int) -> None:
        """Pause forecasts after full step number ``step``, longer each time."""
        if step > self._counts["until"]:
            self._counts["until"] = step + self.PAUSE * 2 ** min(self._counts["pauses"], 20)
            self._counts["pauses"] += 1

    def add(
        self, step: int, info: GradientInfo, limits: Limits, *, warmup: bool, applied: bool
    ) -> Alarm | None:
        """Take one full step's numbers.

        Args:
            step: Its number.
            info: What was measured.
            limits: Those that the step was taken under.
            warmup: Whether it belongs to the warm-up.
            applied: Whether a forecast was applied before it.

        Returns:
            The heaviest alarm, None if all is well.
        """
        found = self._judge(info, limits) if applied else []
        found += self._directions(info)
        found += self._trend(info, warmup, applied)
        self._learn(info)
        if not found or self.pausing(step):
            self._counts["calm"] += 1
            if self._counts["calm"] >= self.CALM:
                self._counts["pauses"] = self._counts["calm"] = 0
            return None
        self._counts["calm"] = 0
        heaviest = max(found, key=lambda alarm: list(Answer).index(alarm.answer))
        if heaviest.answer is not Answer.SHRINK:
            self.pause(step)
        return heaviest

    def _judge(self, info: GradientInfo, limits: Limits) -> list[Alarm]:
        """Loss and gradient of one step at a forecast point against their baselines."""
        found = []
        loss, norm = info.loss, _log(info.total_norm)
        if self._loss.known and math.isfinite(loss):
            off, width = loss - self._loss.mean, self._loss.deviation
            again = self._again("outlier", off > max(6 * width, abs(self._loss.mean) / 2))
            if loss > limits.loss or again:
                answer = Answer.ROLL_BACK if loss > limits.loss else Answer.SHRINK
                found.append(_alarm("loss", answer, f"{loss:.3g}, mean {self._loss.mean:.3g}"))
        if self._norm.known and math.isfinite(norm):
            off, width = norm - self._norm.mean, self._norm.deviation
            again = self._again("burst", off > max(6 * width, math.log(self.FACTOR)))
            if info.total_norm > limits.norm or again:
                answer = Answer.ROLL_BACK if info.total_norm > limits.norm else Answer.SHRINK
                found.append(_alarm("gradient", answer, f"{math.exp(min(off, 700)):.3g} times"))
            if self._steady("vanished", off < -math.log(100) and not self._falls(loss)):
                found.append(_alarm("vanished", Answer.PAUSE, f"{math.exp(off):.3g} times"))
        return found

    def _directions(self, info: GradientInfo) -> list[Alarm]:
        """Alignment, its swings, and residuals."""
        found = []
        if (mean := info.alignment) is not None and math.isfinite(mean):
            before, self._levels["alignment"] = self._levels["alignment"], mean
            self._align.add(mean)
            self._swing.add(0.0 if before is None else mean * before)
            if self._due("uphill", self._align.known and self._align.mean < self.UPHILL):
                found.append(_alarm("uphill", Answer.SHRINK, f"{self._align.mean:.3g}"))
            if self._due("swinging", self._swing.known and self._swing.mean < self.SWING):
                found.append(_alarm("swinging", Answer.SHRINK, f"{self._swing.mean:.3g}"))
            nowhere = all(abs(c) <= 1e-7 for c in info.alignments)
            if self._steady("nowhere", nowhere):
                found.append(_alarm("nowhere", Answer.PAUSE, "0"))
        if math.isfinite(info.residual):
            self._residual.add(min(info.residual, 1e6))
            if self._steady("residual", self._residual.mean > self.RESIDUAL):
                found.append(_alarm("residual", Answer.SHRINK, f"{self._residual.mean:.3g}"))
        return found

    def _trend(self, info: GradientInfo, warmup: bool, applied: bool) -> list[Alarm]:
        """The loss's running mean against where forecasts began and against its lowest."""
        if not math.isfinite(info.loss):
            return []
        levels = self._levels
        known = levels["mean"]
        loss = self._loss.clipped(info.loss)
        mean = loss if known is None else 0.9 * known + 0.1 * loss
        start, lowest = levels["start"], levels["lowest"]
        if warmup or start is None or lowest is None:
            start = lowest = mean
        levels.update(mean=mean, start=start, lowest=min(lowest, mean))
        if not applied:
            return []
        above = mean > start + self.RISE * abs(start)
        self._counts["above"] = self._counts["above"] + 1 if above else 0
        lost = mean - lowest > max(0.5 * (start - lowest), 3 * self._loss.deviation)
        if self._steady("lost", self._loss.known and lost):
            return [_alarm("lost", Answer.PAUSE, f"{mean:.3g}, lowest {lowest:.3g}")]
        return []

    def _falls(self, loss: float) -> bool:
        """Whether a loss takes its running mean to a new low, by a thousandth of it."""
        mean, lowest = self._levels["mean"], self._levels["lowest"]
        if mean is None or lowest is None:
            return True
        return 0.9 * mean + 0.1 * loss < lowest - 1e-3 * abs(lowest)

    def _learn(self, info: GradientInfo) -> None:
        """Let the baselines follow."""
        if math.isfinite(info.loss):
            self._loss.add(info.loss)
        if math.isfinite(info.total_norm):
            self._norm.add(_log(info.total_norm))

    def _steady(self, name: str, holds: bool) -> bool:
        """Whether something has held for ``STEADY`` readings in a row; then the count restarts."""
        self._counts[name] = self._counts[name] + 1 if holds else 0
        if self._counts[name] < self.STEADY:
            return False
        self._counts[name] = 0
        return True

    def _again(self, name: str, holds: bool) -> bool:
        """Whether something holds for the second time in ``STEADY`` readings; once is chance."""
        recent = self._counts[name] > 0
        self._counts[name] = self.STEADY if holds else max(0, self._counts[name] - 1)
        return holds and recent

    def _due(self, name: str, holds: bool) -> bool:
        """Whether something holds that has not alarmed in the last ``STEADY`` readings."""
        self._counts[name] = max(0, self._counts[name] - 1)
        if not holds or self._counts[name]:
            return False
        self._counts[name] = self.STEADY
        return True

    @property
    def parts(self) -> tuple[Any, ...]:
        """Every object that :meth:`load_state_dict` gives new attributes to."""
        return self, *(getattr(self, f"_{name}") for name in _BASELINES)

    def state_dict(self) -> dict[str, Any]:
        """Baselines, levels and counts, as numbers."""
        baselines = {name: getattr(self, f"_{name}").state_dict() for name in _BASELINES}
        return {"baselines": baselines, "counts": dict(self._counts), "levels": dict(self._levels)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: If a number is missing or cannot be one.
        """
        for name in _BASELINES:
            getattr(self, f"_{name}").load_state_dict(state["baselines"][name])
        self._counts = {name: whole(name, state["counts"][name]) for name in _COUNTS}
        levels = {name: state["levels"][name] for name in _LEVELS}
        if not all(v is None or math.isfinite(v) for v in levels.values()):
            raise CheckpointError(
                f"state: expected finite levels, got {levels!r}. Resume from another checkpoint."
            )
        self._levels = levels


_BASELINES = ("loss", "norm", "align", "swing", "residual")
_COUNTS = (
    "above", "outlier", "burst", "calm", "until", "pauses", "uphill", "swinging", "vanished",
    "nowhere", "lost", "residual",
)  # fmt: skip
_LEVELS = ("mean", "start", "lowest", "alignment")


def _alarm(signal: str, answer: Answer, figures: str) -> Alarm:
    return Alarm(answer, REASONS[signal], figures)


def _log(norm: float) -> float:
    return math.log(max(norm, 1e-30)) if norm == norm else norm
