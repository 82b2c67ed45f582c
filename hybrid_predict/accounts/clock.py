"""The clock of a run: which of its N steps are planned as predicted steps, and how far it is."""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from typing import Any

from hybrid_predict.accounts.saved import check_count
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError


class Phase(str, Enum):
    """The phase of a full step."""

    WARMUP = "warmup"
    FULL = "full"
    PREDICT = "predict"
    COOLDOWN = "cooldown"
    PLAIN = "plain"


class Clock:
    r"""Counts steps, and plans which of them are predicted.

    A run of N steps with W of warm-up, C of cooldown and P = N - round(N / speedup) predicted steps
    spreads these evenly over the M = N - W - C steps between: step W + i is predicted where

    .. math:: \lfloor (i + 1) P / M \rfloor > \lfloor i P / M \rfloor .

    Below speedup 2 at most every other step is predicted, so that no two are side by side; from 2
    on at most 2 (speedup - 1) follow each full step on average. With ``full_steps`` F and
    ``predict_steps`` P the pattern between warm-up and cooldown is F full steps, then P predicted.

    A predicted step ticks once its verdict is read and it stands. One that is undone, or not made,
    does not: a full step is taken in its place, and N stays.

    Args:
        config: The run's configuration, with ``total_steps`` set.
        observed: Steps until skill can be known, which the warm-up lasts at least.

    Raises:
        ConfigError: If it is not.
    """

    def __init__(self, config: HybridConfig, observed: int = 0) -> None:
        if config.total_steps is None:
            expected, remedy = "the run's length in steps", "Set HybridConfig(total_steps=...)."
            raise ConfigError("total_steps", expected, None, remedy)
        self.total = config.total_steps
        # The first full step gives a displacement, and the last one verifies.
        first = max(1, _steps(config.warmup_steps, self.total), observed)
        self.warmup = min(self.total, first)
        self.cooldown = min(self.total, max(1, _steps(config.cooldown_steps, self.total)))
        self._between = max(0, self.total - self.warmup - self.cooldown)
        self._pattern = (config.full_steps or 0, config.predict_steps or 0)
        self.wanted, self.planned = self._plan(config)
        self.steps = self.full_steps = self.unread = 0
        self.plain = not config.enabled

    def _plan(self, config: HybridConfig) -> tuple[int, int]:
        """Predicted steps that are asked for, and those that fit."""
        speedup = Fraction(config.compression).limit_denominator(1000)
        if speedup == 1 or not config.enabled:
            return 0, 0
        if any(self._pattern):
            full, predicted = self._pattern
            groups, rest = divmod(self._between, full + predicted)
            count = groups * predicted + max(0, rest - full)
            return count, count
        most = Fraction(1, 2) if speedup < 2 else 1 - 1 / (2 * speedup - 1)
        wanted = self.total - round(self.total / speedup)
        return wanted, min(wanted, math.floor(most * self._between))

    @property
    def shortfall(self) -> str:
        """Why not all predicted steps that were asked for fit; empty if they do."""
        if self.planned == self.wanted:
            return ""
        return (
            f"speedup: of {self.wanted} predicted steps only {self.planned} fit between a warm-up "
            f"of {self.warmup} and a cooldown of {self.cooldown} of {self.total} steps. Train "
            "longer, lower warmup_steps or cooldown_steps, or ask for less speedup."
        )

    @property
    def done(self) -> bool:
        """Whether the run has reached its length."""
        return self.steps >= self.total

    @property
    def position(self) -> int:
        """The coming step, from 0, if all predicted steps whose verdict is unread stand."""
        return self.steps + self.unread

    @property
    def due(self) -> int:
        """Predicted steps that are planned right before the coming full step."""
        if self.plain:
            return 0
        at = self.position
        count = 0
        while self._is_predicted(at + count):
            count += 1
        return count

    def phase(self, predicted: int = 0, *, waiting: bool = False) -> Phase:
        """The phase of the coming full step.

        Args:
            predicted: Predicted steps that were made before it.
            waiting: Whether skill is needed and not known yet.
        """
        if self.plain:
            return Phase.PLAIN
        if predicted:
            return Phase.PREDICT
        if self.cooling and self.position >= self.warmup:
            return Phase.COOLDOWN
        return Phase.WARMUP if waiting or self.position < self.warmup else Phase.FULL

    @property
    def cooling(self) -> bool:
        """Whether the coming full step belongs to the cooldown."""
        return self.position >= self.total - self.cooldown

    def predict(self, count: int) -> None:
        """Note predicted steps that were made and whose verdict is unread."""
        self.unread += count

    def advance(self, standing: int = 0, undone: int = 0) -> int:
        """Count one full step and the verdicts read in it.

        Args:
            standing: Predicted steps whose standing verdict was read.
            undone: Predicted steps that were undone.

        Returns:
            The ticks: 1 + ``standing``.
        """
        self.unread -= standing + undone
        self.full_steps += 1
        self.steps += 1 + standing
        return 1 + standing

    @property
    def closing(self) -> bool:
        """Whether the full step under way is the last, should all unread predicted steps stand."""
        return self.position + 1 >= self.total

    def resume(self, steps: int, full_steps: int) -> None:
        """Continue at a step that somebody else has counted; what was unread is forgotten."""
        self.steps, self.full_steps, self.unread = steps, full_steps, 0

    def fall_back(self) -> None:
        """Leave the rest of the run to the user's own training."""
        self.plain = True

    def _is_predicted(self, step: int) -> bool:
        at, between = step - self.warmup, self._between
        if not (0 <= at < between and self.planned):
            return False
        if any(self._pattern):
            return self._in_pattern(at)
        return (at + 1) * self.planned // between > at * self.planned // between

    def _in_pattern(self, at: int) -> bool:
        full, predicted = self._pattern
        return at % (full + predicted) >= full

    def state_dict(self) -> dict[str, Any]:
        """How far the run is, as integers and a boolean."""
        names = ("total", "steps", "full_steps", "unread", "plain")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: If a count cannot be one.
        """
        full_steps = check_count("full_steps", state["full_steps"])
        steps = check_count("steps", state["steps"], full_steps)  # a full step ticks at least once
        unread = check_count("unread", state["unread"])
        self.steps, self.full_steps, self.unread = steps, full_steps, unread
        self.plain = self.plain or bool(state["plain"])


def _steps(length: int | float, total: int) -> int:
    """Steps of a length given in steps or as a share of the run."""
    return length if isinstance(length, int) else math.ceil(length * total)
