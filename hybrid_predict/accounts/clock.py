"""The clock of a run: counts its steps and plans which of them are predicted."""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from typing import Any, final

from hybrid_predict.accounts.saved import check_count, damaged
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError


class Phase(str, Enum):
    """The phase of a full step."""

    WARMUP = "warmup"
    FULL = "full"
    PREDICT = "predict"
    COOLDOWN = "cooldown"
    PLAIN = "plain"


@final
class Clock:
    r"""Counts steps, and plans which of them are predicted.

    A run has N steps: W of warm-up, C of cooldown, and M = N - W - C between them. Its
    P = N - round(N / speedup) predicted steps are spread evenly over the M: step W + i is predicted
    if

    .. math:: \lfloor (i + 1) P / M \rfloor > \lfloor i P / M \rfloor .

    Below a speedup of 2, at most every other step is predicted, so no two are neighbours. From 2
    on, at most 2 (speedup - 1) of them follow each full step on average. With ``full_steps`` F and
    ``predict_steps`` P, the pattern is F full steps, then P predicted steps.

    A predicted step ticks the clock when its verdict is read and it stands. If it is undone, or
    not made, a full step is taken instead, and N does not change.

    Args:
        config: The run's configuration, with ``total_steps`` set.
        observed: Number of steps until skill can be known; the warm-up lasts at least as long.

    Raises:
        ConfigError: If ``total_steps`` is not set.
    """

    def __init__(self, config: HybridConfig, observed: int = 0) -> None:
        if config.total_steps is None:
            expected, remedy = "the run's length in steps", "Set HybridConfig(total_steps=...)."
            raise ConfigError("total_steps", expected, None, remedy)
        self.total = config.total_steps
        # The first full step yields the first displacement, and the last one verifies.
        first = max(1, _steps(config.warmup_steps, self.total), observed)
        self.warmup = min(self.total, first)
        self.cooldown = min(self.total, max(1, _steps(config.cooldown_steps, self.total)))
        self.between = max(0, self.total - self.warmup - self.cooldown)
        self._pattern = (config.full_steps or 0, config.predict_steps or 0)
        self.wanted, self.planned = self._plan(config)
        self.steps = self.full_steps = self.unread = 0
        self.plain = not config.enabled

    def _plan(self, config: HybridConfig) -> tuple[int, int]:
        """Return how many predicted steps were asked for, and how many of them fit."""
        speedup = Fraction(config.compression).limit_denominator(1000)
        if speedup == 1 or not config.enabled:
            return 0, 0
        if any(self._pattern):
            full, predicted = self._pattern
            groups, rest = divmod(self.between, full + predicted)
            count = groups * predicted + max(0, rest - full)
            return count, count
        most = Fraction(1, 2) if speedup < 2 else 1 - 1 / (2 * speedup - 1)
        wanted = self.total - round(self.total / speedup)
        return wanted, min(wanted, math.floor(most * self.between))

    @property
    def shortfall(self) -> str:
        """Message that tells why not all predicted steps fit; empty if all of them fit."""
        if self.planned == self.wanted:
            return ""
        return (
            f"speedup: only {self.planned} of {self.wanted} predicted steps fit between "
            f"{self.warmup} warm-up steps and {self.cooldown} cooldown steps of a run of "
            f"{self.total} steps. Train longer, lower warmup_steps or cooldown_steps, or lower "
            "speedup."
        )

    @property
    def done(self) -> bool:
        """Whether the run has reached its length."""
        return self.steps >= self.total

    @property
    def over(self) -> bool:
        """Whether all further full steps are plain training."""
        return self.plain or self.done

    @property
    def position(self) -> int:
        """Index of the next step, from 0, if all predicted steps with an unread verdict stand."""
        return self.steps + self.unread

    @property
    def due(self) -> int:
        r"""Number of predicted steps that are planned right before the next full step.

        With :math:`b = i P \bmod M` these are :math:`\lfloor b / (M - P) \rfloor`.
        """
        at = self.position - self.warmup
        if self.plain or not (self.planned and 0 <= at < self.between):
            return 0
        if any(self._pattern):
            full, predicted = self._pattern
            into = at % (full + predicted)
            return min(full + predicted - into, self.between - at) if into >= full else 0
        return at * self.planned % self.between // (self.between - self.planned)

    def phase(self, predicted: int = 0, *, waiting: bool = False) -> Phase:
        """Return the phase of the next full step.

        Args:
            predicted: Number of predicted steps that were made right before it.
            waiting: Whether predicted steps need skill that is not known yet.
        """
        if self.over:
            return Phase.PLAIN
        if predicted:
            return Phase.PREDICT
        if self.cooling and self.position >= self.warmup:
            return Phase.COOLDOWN
        return Phase.WARMUP if waiting or self.position < self.warmup else Phase.FULL

    @property
    def cooling(self) -> bool:
        """Whether the next full step belongs to the cooldown."""
        return self.position >= self.total - self.cooldown

    def predict(self, count: int) -> None:
        """Count predicted steps that were made; their verdict is unread."""
        self.unread += count

    def advance(self, standing: int = 0, undone: int = 0) -> int:
        """Count one full step and the verdicts that were read in it.

        Args:
            standing: Number of predicted steps that a verdict let stand.
            undone: Number of predicted steps that were undone.

        Returns:
            The ticks: 1 + ``standing``, but none beyond the run's length.
        """
        left = max(0, self.total - self.steps)
        self.unread -= standing + undone
        self.full_steps += 1
        self.steps += 1 + standing
        return min(1 + standing, left)

    @property
    def closing(self) -> bool:
        """Whether this full step is the last one, if all unread predicted steps stand."""
        return self.position + 1 >= self.total

    def resume(self, steps: int, full_steps: int) -> None:
        """Continue at a step that the caller has counted; unread verdicts are discarded."""
        self.steps, self.full_steps, self.unread = steps, full_steps, 0

    def fall_back(self) -> None:
        """Continue the rest of the run as plain training, without predicted or corrected steps."""
        self.plain = True

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as integers and a boolean."""
        names = ("total", "steps", "full_steps", "unread", "plain")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`.

        Raises:
            CheckpointError: If an entry is missing or invalid.
        """
        check_count("total", state["total"], 1)
        if not isinstance(state["plain"], bool):
            raise damaged("plain to be True or False", state["plain"])
        full_steps = check_count("full_steps", state["full_steps"])
        steps = check_count("steps", state["steps"], full_steps)  # a full step ticks at least once
        unread = check_count("unread", state["unread"])
        self.steps, self.full_steps, self.unread = steps, full_steps, unread
        self.plain = self.plain or state["plain"]


def _steps(length: int | float, total: int) -> int:
    """Convert a length in steps, or a share of the run, to steps."""
    return length if isinstance(length, int) else math.ceil(length * total)
