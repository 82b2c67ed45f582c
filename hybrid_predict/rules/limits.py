"""Limits of losses and gradient norms, from running baselines; alarms and their pauses."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

from hybrid_predict.rules.numbers import clip, library, select

REACH, DECAY, LEAST = 6.0, 0.95, 8
"""A baseline clips readings at so many deviations; decay of its means; readings until it counts."""

LOSS, NORM = (0.02, 1e-30), (0.0, 0.05)
"""Smallest deviations of the loss and of a norm's logarithm, as a share of its mean and absolutely.
With smaller ones, equal readings would turn every other one into an outlier."""

HIGHEST = 80.0  # logarithm of the highest limit of a norm; its exponential fits in 32 bits
PAUSE = 16  # full steps in the pause after the first alarm; each further pause is twice as long
MOST_PAUSES = 3  # the next alarm ends predicted steps for the rest of the run
IDLE = 8  # verifying steps in a row without an update that count as an alarm
CALM = 500  # full steps without an alarm after which the number of pauses returns to 0

RISE, PATIENCE = 0.2, 32
"""Share by which the mean loss, and full steps for which it may stand above that of the warm-up. It
has to be a standard deviation above it too: a fifth of a loss near 0 is less than its noise."""

RISEN = (
    "the training loss stands above that of the warm-up; lower the learning rate, or set "
    "watch_loss=False if the loss may rise, as in reinforcement learning"
)
"""Why a run falls back to plain training."""


@final
class Baseline(NamedTuple):
    """Running mean and mean squared deviation of a number, and the number of readings."""

    mean: Any = 0.0
    square: Any = 0.0
    count: Any = 0


@final
class Limits(NamedTuple):
    r"""Baselines of a run's loss and gradient norms, and counts of alarms.

    Predicted steps are undone if the loss of the verifying step exceeds
    :math:`\mu + \max(12 \sigma, 3 |\mu|)`, with running mean :math:`\mu` and standard deviation
    :math:`\sigma`, or if the logarithm of a gradient norm exceeds its running mean by
    :math:`\max(8 \sigma, \log 100)`.
    """

    loss: Baseline
    norms: tuple[Baseline, ...]  # of the logarithms of gradient norms, one per optimizer
    start: Any = math.nan  # mean loss at the end of the warm-up; nan before any loss
    mean: Any = math.nan  # mean loss now; nan before any loss
    until: Any = 0  # last full step of the pause
    pauses: Any = 0
    calm: Any = 0  # full steps since the last alarm
    above: Any = 0  # full steps in a row with a mean loss far above that of the warm-up
    idle: Any = 0  # verifying steps in a row without an update


def first_limits(optimizers: int) -> Limits:
    """Return the limits before the first full step, which are infinite."""
    return Limits(Baseline(), (Baseline(),) * optimizers)


def loss_limit(limits: Limits) -> Any:
    """Return the loss above which predicted steps are undone; infinite if not known yet."""
    xp, loss = library(*limits.loss), limits.loss
    limit = loss.mean + xp.maximum(12 * _deviation(loss, LOSS), 3 * abs(loss.mean))
    return xp.where(loss.count >= LEAST, limit, math.inf)


def norm_limits(limits: Limits) -> tuple[Any, ...]:
    """Return the gradient norm of each optimizer above which predicted steps are undone."""
    return tuple(map(_norm_limit, limits.norms))


def _norm_limit(norm: Baseline) -> Any:
    xp = library(*norm)
    above = xp.maximum(8 * _deviation(norm, NORM), math.log(100))
    limit = xp.exp(xp.minimum(norm.mean + above, HIGHEST))
    return xp.where(norm.count >= LEAST, limit, math.inf)


def exhausted(limits: Limits) -> Any:
    """Return whether alarms have come back after too many pauses."""
    return limits.pauses > MOST_PAUSES


def risen(limits: Limits) -> Any:
    """Return whether the loss has exceeded that of the warm-up for too long."""
    return limits.above >= PATIENCE


def pausing(limits: Limits, step: Any) -> Any:
    """Return whether predicted steps are paused before full step number ``step``."""
    return exhausted(limits) | (step <= limits.until)


def alarmed(limits: Limits, step: Any) -> Limits:
    """Pause predicted steps after full step number ``step``, for longer each time."""
    until = step + PAUSE * 2 ** clip(limits.pauses, 0, 20)
    paused = limits._replace(until=until, pauses=limits.pauses + 1)
    limits = select(step > limits.until, paused, limits)
    return limits._replace(calm=0 * limits.calm, idle=0 * limits.idle)


def learned(limits: Limits, loss: Any, norms: tuple[Any, ...], warmup: Any) -> Limits:
    """Add loss and gradient norms of a full step without an alarm; nan where not measured."""
    calm = limits.calm + 1
    forgiven = limits._replace(calm=0 * calm, pauses=0 * limits.pauses)
    over = (calm >= CALM) & (limits.pauses <= MOST_PAUSES)
    limits = select(over, forgiven, limits._replace(calm=calm))
    pairs = zip(limits.norms, norms, strict=True)
    limits = limits._replace(norms=tuple(_with_norm(*pair) for pair in pairs))
    xp = library(loss, *limits.loss)
    known = xp.isfinite(loss)
    return select(known, _with_loss(limits, xp.where(known, loss, 0.0), warmup), limits)


def _with_norm(baseline: Baseline, norm: Any) -> Baseline:
    xp = library(norm, *baseline)
    usable = (norm > 0.0) & (norm < math.inf)  # the norm is 0 while a loss is switched off
    logarithm = xp.log(xp.where(usable, norm, 1.0))
    return select(usable, _added(baseline, logarithm, NORM), baseline)


def _with_loss(limits: Limits, loss: Any, warmup: Any) -> Limits:
    xp, before = library(loss, *limits.loss), limits.loss
    clipped = _clipped(before, loss, LOSS)
    mean = xp.where(xp.isnan(limits.mean), clipped, 0.9 * limits.mean + 0.1 * clipped)
    start = xp.where(warmup | xp.isnan(limits.start), mean, limits.start)
    above = mean - start > xp.maximum(RISE * abs(start), _deviation(before, LOSS))
    return limits._replace(
        loss=_added(before, loss, LOSS),
        mean=mean,
        start=start,
        above=xp.where(above, limits.above + 1, 0 * limits.above),
    )


def _deviation(baseline: Baseline, smallest: tuple[float, float]) -> Any:
    """Return the running standard deviation, above 0."""
    xp, (share, least) = library(*baseline), smallest
    return xp.maximum(xp.maximum(xp.sqrt(baseline.square), share * abs(baseline.mean)), least)


def _clipped(baseline: Baseline, value: Any, smallest: tuple[float, float]) -> Any:
    """Clip a value to the range that the baseline accepts."""
    xp, reach = library(value, *baseline), REACH * _deviation(baseline, smallest)
    near = xp.minimum(baseline.mean + reach, xp.maximum(baseline.mean - reach, value))
    return xp.where(baseline.count >= LEAST, near, value)


def _added(baseline: Baseline, value: Any, smallest: tuple[float, float]) -> Baseline:
    xp, first = library(value, *baseline), baseline.count == 0
    share = xp.maximum(1.0 - DECAY, 1.0 / (baseline.count + 1))
    off = xp.where(first, 0.0, _clipped(baseline, value, smallest) - baseline.mean)
    mean = xp.where(first, value, baseline.mean + share * off)
    square = (1.0 - share) * (baseline.square + share * off * off)
    return Baseline(mean, square, baseline.count + 1)
