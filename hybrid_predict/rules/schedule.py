"""Which steps of a run are planned as predicted steps."""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.rules.numbers import library

OVER = (
    "the loop continues after the run's last step: this is plain training, and the schedule stays "
    "at its end (leave the loop when engine.done is True)"
)
"""Event of the ledger: full steps after ``total_steps``."""

_BITS = 31  # of a position in the longest run of the functional form, which counts in 32 bits


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

    total: Any  # N
    warmup: Any  # W
    cooldown: Any  # C
    between: Any  # M
    planned: Any  # P, as far as they fit; with speedup="auto" the largest possible number
    wanted: Any = 0  # P, as asked for
    full: Any = 0  # F; 0 without a pattern
    group: Any = 0  # predicted steps of each group of the pattern

    @property
    def shortfall(self) -> str:
        """Event of the ledger: not all predicted steps fit; empty if all of them do."""
        if self.planned == self.wanted:
            return ""
        return (
            f"only {self.planned} of {self.wanted} predicted steps fit between {self.warmup} "
            f"warm-up steps and {self.cooldown} cooldown steps of a run of {self.total} steps; "
            "train longer, or lower warmup_steps, cooldown_steps or speedup"
        )


def schedule(config: HybridConfig, observed: int = 0) -> Schedule:
    """Return the schedule of a run; its warm-up lasts at least ``observed`` steps.

    Raises:
        ConfigError: If ``config.total_steps`` is not set.
    """
    total = config.total_steps
    if total is None:
        expected, remedy = "the run's length in steps", "Set HybridConfig(total_steps=...)."
        raise ConfigError("total_steps", expected, None, remedy)
    # The first full step yields the first displacement, and the last one verifies.
    warmup = min(total, max(1, _steps(config.warmup_steps, total), observed))
    cooldown = min(total, max(1, _steps(config.cooldown_steps, total)))
    between = max(0, total - warmup - cooldown)
    full, group = config.full_steps or 0, config.predict_steps or 0
    speedup = Fraction(config.compression).limit_denominator(1000)
    if speedup == 1:
        wanted = planned = 0
    elif config.paced:
        wanted = planned = between - math.floor(between / speedup)
    elif group:
        groups, rest = divmod(between, full + group)
        wanted = planned = groups * group + max(0, rest - full)
    else:
        most = Fraction(1, 2) if speedup < 2 else 1 - 1 / (2 * speedup - 1)
        wanted = total - round(total / speedup)
        planned = min(wanted, math.floor(most * between))
    return Schedule(total, warmup, cooldown, between, planned, wanted, full, group)


def _steps(length: int | float, total: int) -> int:
    """Convert a length in steps, or a share of the run, to steps."""
    return length if isinstance(length, int) else math.ceil(length * total)


def due(schedule: Schedule, position: Any) -> Any:
    r"""Return the number of predicted steps planned before the next full step.

    With :math:`b = i P \bmod M` these are :math:`\lfloor b / (M - P) \rfloor`, where W + i is the
    position: the index of the next step, from 0.
    """
    _, warmup, _, between, planned, _, full, group = schedule
    xp, at = library(position, *schedule), position - warmup
    inside = (at >= 0) & (at < between)
    at, length = xp.where(inside, at, 0), xp.maximum(between, 1)
    into, period = at % xp.maximum(full + group, 1), full + group
    rest = xp.where(into >= full, xp.minimum(period - into, between - at), 0)
    spread = _product(at, planned, length) // xp.maximum(between - planned, 1)
    return xp.where(inside & (planned > 0), xp.where(group > 0, rest, spread), 0)


def _product(left: Any, right: Any, modulus: Any) -> Any:
    """Return left · right mod modulus; no number of an array needs more than 32 bits."""
    xp = library(left, right, modulus)
    if isinstance(left, int):
        return left * right % modulus
    total, term = 0 * left, right % modulus
    for bit in range(_BITS):
        space = modulus - term
        added = xp.where(total >= space, total - space, total + term)
        total = xp.where((left >> bit) & 1 == 1, added, total)
        term = xp.where(term >= space, term - space, term + term)
    return total


def phase(
    schedule: Schedule, position: Any, predicted: int, *, waiting: bool, plain: bool
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


def cooling(schedule: Schedule, position: Any) -> Any:
    """Return whether the step at a position belongs to the cooldown."""
    return position >= schedule.total - schedule.cooldown
