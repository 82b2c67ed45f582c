"""Which steps of a run are planned as predicted steps."""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from typing import NamedTuple, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError

OVER = (
    "the loop continues after the run's last step: this is plain training, and the schedule stays "
    "at its end (leave the loop when engine.done is True)"
)
"""Event of the ledger: full steps after ``total_steps``."""


class Phase(str, Enum):
    """The phase of a full step."""

    WARMUP = "warmup"
    FULL = "full"
    PREDICT = "predict"
    COOLDOWN = "cooldown"
    PLAIN = "plain"


@final
class Schedule(NamedTuple):
    r"""Which steps of a run are planned as predicted steps.

    A run has N steps: W of warm-up, C of cooldown, and M = N - W - C between them. Its
    P = N - round(N / speedup) predicted steps are spread evenly over the M: step W + i is predicted
    if

    .. math:: \lfloor (i + 1) P / M \rfloor > \lfloor i P / M \rfloor .

    Below a speedup of 2, at most every other step is predicted, so no two are neighbours. From 2
    on, at most 2 (speedup - 1) of them follow each full step on average. A pattern of F full steps
    and P predicted steps may take the place of a speedup.
    """

    total: int  # N
    warmup: int  # W
    cooldown: int  # C
    between: int  # M
    planned: int  # P, as far as they fit; with speedup="auto" the largest possible number
    wanted: int = 0  # P, as asked for
    full: int = 0  # F; 0 without a pattern
    group: int = 0  # predicted steps of each group of the pattern

    @property
    def shortfall(self) -> str:
        """Event of the ledger: not all predicted steps fit; empty if all of them do."""
        if self.planned == self.wanted:
            return ""
        return (
            f"only {self.planned} of {self.wanted} predicted steps fit into a run of {self.total} "
            f"steps: the first {self.warmup} are for warm-up and to see whether forecasts have "
            f"skill, the last {self.cooldown} for cooldown; train longer, or lower speedup"
        )


def schedule(config: HybridConfig, observed: int = 0) -> Schedule:
    """Return the schedule of a run; its warm-up lasts at least ``observed`` steps.

    Raises:
        ConfigError: If ``config.total_steps`` is not set.
    """
    total = config.total_steps
    if total is None:
        remedy = "Set HybridConfig(total_steps=...)."
        raise ConfigError("total_steps", "the run's length in steps", None, remedy)
    # The first full step yields the first displacement, and the last one verifies.
    warmup = min(total, max(1, _steps(config.warmup_steps, total), observed))
    cooldown = min(total, max(1, _steps(config.cooldown_steps, total)))
    between = max(0, total - warmup - cooldown)
    full = config.full_steps or 0
    group = config.predict_steps or 0
    speedup = Fraction(config.compression).limit_denominator(1000)
    wanted = total - round(total / speedup)
    if speedup == 1 or config.paced:
        wanted = planned = between - math.floor(between / speedup)
    elif group:
        groups, rest = divmod(between, full + group)
        wanted = planned = groups * group + max(0, rest - full)
    else:
        most = Fraction(1, 2) if speedup < 2 else 1 - 1 / (2 * speedup - 1)
        planned = min(wanted, math.floor(most * between))
    return Schedule(total, warmup, cooldown, between, planned, wanted, full, group)


def _steps(length: int | float, total: int) -> int:
    return length if isinstance(length, int) else math.ceil(length * total)


def due(schedule: Schedule, position: int) -> int:
    r"""Return the number of predicted steps planned before the next full step.

    With :math:`b = i P \bmod M` these are :math:`\lfloor b / (M - P) \rfloor`, where W + i is the
    position: the index of the next step, from 0.
    """
    at = position - schedule.warmup
    if not schedule.planned or not 0 <= at < schedule.between:
        return 0
    if schedule.group:
        into = at % (schedule.full + schedule.group)
        left = min(schedule.full + schedule.group - into, schedule.between - at)
        return left if into >= schedule.full else 0
    rest = at * schedule.planned % schedule.between
    return rest // max(schedule.between - schedule.planned, 1)


def phase(
    schedule: Schedule, position: int, predicted: int, *, waiting: bool, plain: bool
) -> Phase:
    """Return the phase of the full step at a position, after so many predicted steps.

    ``waiting`` is whether predicted steps need skill that is not known yet, and ``plain`` whether
    the rest of the run is plain training.
    """
    if plain:
        return Phase.PLAIN
    if predicted:
        return Phase.PREDICT
    if cooling(schedule, position) and position >= schedule.warmup:
        return Phase.COOLDOWN
    return Phase.WARMUP if waiting or position < schedule.warmup else Phase.FULL


def cooling(schedule: Schedule, position: int) -> bool:
    """Return whether the step at a position belongs to the cooldown."""
    return position >= schedule.total - schedule.cooldown
