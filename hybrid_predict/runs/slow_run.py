"""Tells early that a run takes longer than plain training, from the seconds of its full steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, final

from hybrid_predict.ledger import duration
from hybrid_predict.runs.overview import MOST_SPEEDUP, Overview, overview

if TYPE_CHECKING:
    from hybrid_predict.engine import HybridEngine

FIRST = 10
LAST = 40
"""Full steps between which seconds count; the first ones allocate memory and count operations."""


@final
class StepSeconds(NamedTuple):
    """Seconds of a full step of plain training, and of one with the plug-in."""

    plain: float
    helped: float


def relative_duration(seconds: StepSeconds, plan: Overview, predicted: int) -> float:
    """Return the seconds of a run per second of plain training of as many steps.

    Its ``predicted`` steps, which take almost no time, count nothing.
    """
    return seconds.helped / seconds.plain * (plan.steps - predicted) / plan.steps


def describe_duration(seconds: StepSeconds, plan: Overview) -> str:
    """Describe how long a planned run takes, and what makes it shorter if that is too long."""
    plain = duration(seconds.plain)
    helped = duration(seconds.helped)
    least = relative_duration(seconds, plan, plan.predicted)
    most = relative_duration(seconds, plan, 0)
    share = f"{most:.2f} times"
    if plan.predicted:
        share = f"{least:.2f} (if all planned predicted steps are made) to {share} (if none is)"
    text = (
        f"a full step takes {helped} in place of {plain}, so the run takes {share} as long as "
        f"plain training of {plan.steps:,} steps"
    )
    ways = ["larger batches"] if any(part.corrected for part in plan.parts) else []
    full = math.ceil(plan.steps * seconds.plain / seconds.helped) - 1
    if full > max(plan.warmup + plan.cooldown, plan.steps / MOST_SPEEDUP):
        fewer = f"a speedup with fewer than {full:,} full steps"
        ways.append(f"{fewer}, if an audit finds no loss of quality")
    return f"{text}; faster are {', or '.join(ways)}" if ways and least >= 1.0 else text


@final
class SlowRun:
    """Watches the seconds of a run's first full steps.

    Only models on the CPU are watched: on other devices the host's seconds do not tell. Nothing is
    decided by seconds, so that a run can be repeated.
    """

    def __init__(self, engine: HybridEngine) -> None:
        self._engine = engine
        self._before: StepSeconds | None = None

    def warning(self, step: int) -> str:
        """Return a warning after full step ``LAST`` if the run loses seconds, else nothing."""
        engine = self._engine
        ledger = engine.ledger
        now = StepSeconds(ledger.full_seconds, ledger.full_seconds + ledger.overhead_seconds)
        if step == FIRST and all(p.device.type == "cpu" for p in engine.mapper.parameters):
            self._before = now
        if step != LAST or self._before is None or engine.config.shadow or ledger.fell_back:
            return ""
        took = [(b - a) / (LAST - FIRST) for a, b in zip(self._before, now, strict=True)]
        seconds = StepSeconds(*took)
        plan = overview(engine)
        slow = seconds.plain > 0 and relative_duration(seconds, plan, plan.predicted) >= 1.0
        return describe_duration(seconds, plan) if slow else ""
