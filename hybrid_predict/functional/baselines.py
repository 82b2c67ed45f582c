"""Limits of losses and gradient norms, and alarms, as functions of arrays.

The rules are those of `verify.monitor`.
"""

from __future__ import annotations

import math
from typing import Any

from hybrid_predict.functional.state import Baseline, Monitor, select
from hybrid_predict.tensors.arrays import cast, namespace
from hybrid_predict.verify import monitor as rules

ROUGH, CLOSEST, LEAST_NORM = 0.02, 1e-30, 0.05
"""Least deviations: of the loss as a share of its mean, and absolutely; of a norm's logarithm."""


def limits(monitor: Monitor) -> tuple[Any, Any]:
    """Loss and gradient norm above which predicted steps are undone; infinite at first."""
    xp = namespace(monitor.start)
    deviation = _deviation(monitor.loss, ROUGH, CLOSEST)
    loss = monitor.loss.mean + xp.maximum(12 * deviation, 3 * xp.abs(monitor.loss.mean))
    reach = 8 * _deviation(monitor.norm, 0.0, LEAST_NORM)
    above = xp.maximum(reach, xp.full_like(reach, math.log(100)))
    norm = xp.exp(xp.minimum(monitor.norm.mean + above, xp.full_like(reach, 80.0)))
    never = xp.full_like(norm, math.inf)
    return (
        xp.where(_known(monitor.loss), loss, never),
        xp.where(_known(monitor.norm), norm, never),
    )


def exhausted(monitor: Monitor) -> Any:
    """Whether alarms came back after too many pauses, 0-dim bool."""
    return monitor.pauses > rules.MOST_PAUSES


def risen(monitor: Monitor) -> Any:
    """Whether the loss has stood above that of the warm-up for too long, 0-dim bool."""
    return monitor.above >= rules.PATIENCE


def pausing(monitor: Monitor, step: Any) -> Any:
    """Whether no predicted steps are to be made before a full step, 0-dim bool."""
    return exhausted(monitor) | (step <= monitor.until)


def alarm(monitor: Monitor, step: Any) -> Monitor:
    """Pause predicted steps after a full step, longer each time."""
    xp = namespace(monitor.until)
    late = step > monitor.until
    doubled = rules.PAUSE * 2 ** xp.minimum(monitor.pauses, xp.full_like(monitor.pauses, 20))
    return monitor._replace(
        calm=xp.zeros_like(monitor.calm),
        until=xp.where(late, step + doubled, monitor.until),
        pauses=xp.where(late, monitor.pauses + 1, monitor.pauses),
    )


def learn(monitor: Monitor, loss: Any, norm: Any, warmup: Any) -> Monitor:
    """Take loss (nan if unknown) and gradient norm of a full step without an alarm."""
    xp = namespace(monitor.start)
    calm = monitor.calm + 1
    forgiven = (calm >= rules.CALM) & ~exhausted(monitor)
    usable = (norm > 0) & xp.isfinite(norm)
    logarithm = xp.log(xp.where(usable, norm, xp.ones_like(norm)))
    norms = select(usable, _added(monitor.norm, logarithm, 0.0, LEAST_NORM), monitor.norm)
    monitor = monitor._replace(
        norm=norms,
        calm=xp.where(forgiven, 0 * calm, calm),
        pauses=xp.where(forgiven, 0 * calm, monitor.pauses),
    )
    clipped = _clipped(monitor.loss, loss, ROUGH, CLOSEST)
    mean = xp.where(xp.isnan(monitor.mean), clipped, 0.9 * monitor.mean + 0.1 * clipped)
    start = xp.where(warmup | xp.isnan(monitor.start), mean, monitor.start)
    noise = _deviation(monitor.loss, ROUGH, CLOSEST)
    above = mean - start > xp.maximum(rules.RISE * xp.abs(start), noise)
    seen = monitor._replace(
        loss=_added(monitor.loss, loss, ROUGH, CLOSEST),
        mean=mean,
        start=start,
        above=xp.where(above, monitor.above + 1, 0 * monitor.above),
    )
    result: Monitor = select(xp.isfinite(loss), seen, monitor)
    return result


def _known(baseline: Baseline) -> Any:
    return baseline.count >= rules.Baseline.LEAST


def _deviation(baseline: Baseline, rough: float, least: float) -> Any:
    xp = namespace(baseline.mean)
    found = xp.maximum(xp.sqrt(baseline.square), rough * xp.abs(baseline.mean))
    return xp.maximum(found, xp.full_like(found, least))


def _clipped(baseline: Baseline, value: Any, rough: float, least: float) -> Any:
    xp = namespace(baseline.mean)
    reach = rules.Baseline.REACH * _deviation(baseline, rough, least)
    near = xp.minimum(baseline.mean + reach, xp.maximum(baseline.mean - reach, value))
    return xp.where(_known(baseline), near, value)


def _added(baseline: Baseline, value: Any, rough: float, least: float) -> Baseline:
    xp = namespace(baseline.mean)
    count = cast(baseline.count + 1, baseline.mean.dtype)
    share = xp.maximum(1.0 / count, xp.full_like(count, 1.0 - rules.Baseline.DECAY))
    off = _clipped(baseline, value, rough, least) - baseline.mean
    off = xp.where(baseline.count > 0, off, 0.0 * off)
    mean = xp.where(baseline.count > 0, baseline.mean + share * off, value)
    square = (1.0 - share) * (baseline.square + share * off * off)
    return Baseline(mean, square, baseline.count + 1)
