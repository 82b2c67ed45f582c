"""Tells early that a run takes longer than plain training, from the seconds of its full steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, final

from hybrid_predict.report.overview import Overview, overview

if TYPE_CHECKING:
    from hybrid_predict.engine import HybridEngine

FIRST, LAST = 10, 40
"""Full steps between which seconds count; the first ones allocate memory and count operations."""


@final
class StepSeconds(NamedTuple):
    """Seconds of a full step of plain training, and of one with the plug-in."""

    plain: float
    helped: float


def relative_duration(seconds: StepSeconds, plan: Overview) -> float:
    """Return the seconds of a planned run per second of plain training of as many steps.

    Predicted steps, which take almost no time, count nothing.
    """
    return seconds.helped / seconds.plain * (plan.steps - plan.predicted) / plan.steps


def describe_duration(seconds: StepSeconds, plan: Overview) -> str:
    """Describe how long a planned run takes, and what makes it shorter if that is too long."""
    plain, helped = (f"{1000 * each:.3g} ms" for each in seconds)
    share = relative_duration(seconds, plan)
    text = (
        f"a full step takes {helped} in place of {plain}, so the run takes {share:.2f} times as "
        f"long as plain training of {plan.steps:,} steps"
    )
    if share < 1.0:
        return text
    most = math.ceil(plan.steps * seconds.plain / seconds.helped) - 1
    ways = [f"a speedup with fewer than {most:,} full steps, if an audit finds no loss of quality"]
    if any(part.corrected for part in plan.parts):
        ways = ["larger batches", *ways]
    return f"{text}; faster are {', or '.join(ways)}"


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
        engine, ledger = self._engine, self._engine.ledger
        now = StepSeconds(ledger.full_seconds, ledger.full_seconds + ledger.overhead_seconds)
        if step == FIRST and all(p.device.type == "cpu" for p in engine.mapper.parameters):
            self._before = now
        if step != LAST or self._before is None or engine.config.shadow or ledger.fell_back:
            return ""
        took = [(b - a) / (LAST - FIRST) for a, b in zip(self._before, now, strict=True)]
        seconds, plan = StepSeconds(*took), overview(engine)
        slow = seconds.plain > 0 and relative_duration(seconds, plan) >= 1.0
        return describe_duration(seconds, plan) if slow else ""
