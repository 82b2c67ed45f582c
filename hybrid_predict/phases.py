"""The phases of a run and its clock: how far each full step advances it."""

from __future__ import annotations

import copy
import math
from enum import Enum
from fractions import Fraction
from typing import Any

from hybrid_predict.checkpoint import whole
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.support import support

_GRAIN = 64
"""Credits of ``speedup="auto"`` are multiples of one part in so many of a tick."""


class Phase(str, Enum):
    """Where a run stands; see :class:`Clock` for when each begins."""

    WARMUP = "warmup"
    PREDICT = "predict"
    CORRECT = "correct"
    FULL = "full"
    COOLDOWN = "cooldown"


LEARNING = (Phase.WARMUP, Phase.PREDICT, Phase.CORRECT)
"""Phases in which predictors observe."""


class Clock:
    r"""Counts full steps and equivalent steps, and decides phase and ticks from them.

    With T equivalent steps in all, W of warm-up, C of cooldown and F = round(T / speedup) full
    steps planned, the run has E = T - F ticks to hand out beyond one per full step. They are shared
    equally over the Q forecasts that the F - W - C full steps between warm-up and cooldown hold:

    .. math:: \text{credit} = \min(E / Q,\; 2 \cdot \text{speedup} - 1)

    With ``speedup="auto"`` nothing is planned: a forecast is credited with what it supports, less
    one (:func:`hybrid_predict.support.support`). A forecast is credited when its verdict is read,
    fractions are carried exactly, and no more than E is handed out, so with a planned speedup
    accepted forecasts end the run after F full steps, if verdicts lag by no more than C.

    Args:
        config: The run's configuration, with ``total_steps`` set.

    Raises:
        ConfigError: If it is not.
    """

    def __init__(self, config: HybridConfig) -> None:
        total = config.total_steps
        if total is None:
            raise ConfigError(
                "total_steps",
                "the run's length in optimizer updates",
                total,
                "Set HybridConfig(total_steps=...).",
            )
        self.total = total
        self._period = config.period
        self._cycle = config.period + config.correct_steps
        # The first full step shows which parameters have gradients, the second gives a history.
        self._warmup = max(2, math.ceil(config.warmup_fraction * total))
        self._cooldown = math.ceil(config.cooldown_fraction * total)
        plain = self._warmup + self._cooldown
        self._auto = config.speedup == "auto"
        self._extra, self.credit, self._capped = _plan(config, plain, self._cycle)
        self.full_steps = 0
        self.equivalent_steps = 0
        self._in_cycles = 0
        self._credited = self._carry = Fraction(0)
        self.handed_over = not config.enabled

    @property
    def shortfall(self) -> str:
        """Why the speedup cannot be reached even if all forecasts are accepted; empty if it can."""
        if not self._capped:
            return ""
        trial = copy.copy(self)
        while not trial.done:
            trial.advance(int(trial.forecast_due))
        if trial.full_steps <= self.total - self._extra:
            return ""
        return (
            f"speedup: with at most {float(1 + self.credit):.3g} ticks per forecast this run ends "
            f"after {trial.full_steps} full steps, not {self.total - self._extra}. Lower period, "
            "correct_steps, warmup_fraction or cooldown_fraction, or ask for less speedup."
        )

    @property
    def most_saved(self) -> float:
        """Equivalent steps beyond one that a full step between two forecasts earns at most."""
        most = support(math.inf, 1.0) - 1.0 if self._auto and self._extra else float(self.credit)
        return most / self._cycle

    @property
    def done(self) -> bool:
        """Whether the run has reached its length."""
        return self.equivalent_steps >= self.total

    @property
    def phase(self) -> Phase:
        """The phase of the coming full step."""
        if self.handed_over:
            return Phase.FULL
        if self.equivalent_steps < self._warmup:
            return Phase.WARMUP
        if self.equivalent_steps >= self.total - self._cooldown:
            return Phase.COOLDOWN
        return Phase.PREDICT if self._in_cycles % self._cycle < self._period else Phase.CORRECT

    @property
    def forecast_due(self) -> bool:
        """Whether the coming full step opens a cycle, with a forecast before it."""
        return self.phase is Phase.PREDICT and self._in_cycles % self._cycle == 0

    def advance(self, credited: int = 0, support: float = 1.0) -> int:
        """Count one full step and return its ticks.

        Args:
            credited: How many forecasts turned out accepted or shrunk since the last full step.
            support: Equivalent steps per full step that each of them supports; counts only with
                ``speedup="auto"``.

        Returns:
            Equivalent steps that the run advances: at least 1, never beyond the end.
        """
        if self.phase in (Phase.PREDICT, Phase.CORRECT):
            self._in_cycles += 1
        if not self.handed_over:
            share = Fraction(round(_GRAIN * (support - 1)), _GRAIN) if self._auto else self.credit
            credit = min(credited * share, max(Fraction(0), self._extra - self._credited))
            self._credited += credit
            self._carry += credit
        ticks = min(1 + math.floor(self._carry), self.total - self.equivalent_steps)
        self._carry -= max(0, ticks - 1)
        self.full_steps += 1
        self.equivalent_steps += ticks
        return ticks

    def hand_over(self) -> None:
        """Leave the rest of the run to plain full steps."""
        self.handed_over = True
        self._carry = Fraction(0)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the future depends on, as integers and booleans."""
        return {
            "total": self.total,
            "full_steps": self.full_steps,
            "equivalent_steps": self.equivalent_steps,
            "in_cycles": self._in_cycles,
            "carry": [self._carry.numerator, self._carry.denominator],
            "credited": [self._credited.numerator, self._credited.denominator],
            "handed_over": self.handed_over,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: If a count cannot be one.
        """
        self.full_steps = whole("full_steps", state["full_steps"])
        # A full step ticks at least once.
        self.equivalent_steps = whole(
            "equivalent_steps", state["equivalent_steps"], self.full_steps
        )
        self._in_cycles = whole("in_cycles", state["in_cycles"])
        self._carry, self._credited = (
            Fraction(whole(name, state[name][0]), whole(name, state[name][1], 1))
            for name in ("carry", "credited")
        )
        self.handed_over = bool(state["handed_over"])


def _plan(config: HybridConfig, plain: int, cycle: int) -> tuple[int, Fraction, bool]:
    """Ticks to hand out beyond one per full step, a forecast's share, and whether it is capped."""
    total = config.total_steps or 0
    if config.shadow or config.speedup == 1:
        return 0, Fraction(0), False
    if config.speedup == "auto":
        return total, Fraction(0), False
    speedup = Fraction(config.speedup).limit_denominator(1000)
    extra, most = total - round(total / speedup), 2 * speedup - 1
    forecasts = math.ceil(max(0, total - extra - plain) / cycle)
    share = Fraction(extra, forecasts) if forecasts else most + 1
    return extra, min(share, most), share > most
