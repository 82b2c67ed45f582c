"""How many predicted steps follow each full step, and how long they are, from what a run shows.

docs/method.md has the rule in words, decision 4 the source of its constants. Advances are in
lengths of the drift per full step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, final

from hybrid_predict.config import MOST_PREDICTED
from hybrid_predict.rules.gate import LEAST_MOVED
from hybrid_predict.rules.numbers import clip, library, ratio, select
from hybrid_predict.rules.schedule import Schedule
from hybrid_predict.rules.skill import Pooled
from hybrid_predict.rules.verdict import Slopes

LONGEST = 4.0  # largest length of a predicted step of one kind, in drifts
MOST = LONGEST * MOST_PREDICTED  # largest advance
REACH = 4.0  # largest advance that needs little evidence
FIRST_ADVANCE, LEAST_ADVANCE = 0.5, 0.1  # the first advance, and the smallest one; less is none
LEAST = 0.02  # smallest number of predicted steps per full step; fewer are none
RISE = 4.0  # factor by which the learning rate may exceed that of the last window
FINEST = 2.0**-16  # unit of that number; sums of its multiples are exact in every array library

BEGUN_ANEW = (
    f"forecasts began anew: the learning rate rose to more than {RISE:g} times that at which they "
    "were measured"
)
"""Event of the ledger."""


@final
class Thresholds(NamedTuple):
    """What an advance needs."""

    rising: Any  # persistence above which the advance doubles to this one
    falling: Any  # persistence below which this advance halves
    worth: Any  # worth of a predicted step below which it is not reached, or halves


NEAR = Thresholds(rising=0.03, falling=-0.05, worth=0.1)
FAR = Thresholds(rising=0.2, falling=0.1, worth=0.5)
"""Thresholds of advances up to :data:`REACH`, and beyond it."""


@final
class Lagged(NamedTuple):
    r"""Products of forecasts with the movement of the second window after them, over tensors."""

    late: Any = 0.0  # Σ <forecast, D'> / K', with the displacements of the second window
    early: Any = 0.0  # Σ m <forecast, D> / K, with those of the first
    forecast: Any = 0.0  # Σ (1 - m) |forecast|²
    drift: Any = 0.0  # Σ (1 - m) |drift|²
    chance: Any = 0.0  # variance of the products for random signs of the forecast's entries


@final
class Pace(NamedTuple):
    r"""How far predicted steps move the tensors of one kind and optimizer.

    The persistence q of a forecast in the second window after it leaves out the share m of the
    first window's movement that momentum :math:`\beta` alone carries into the second:

    .. math:: q = \frac{\langle \hat\Delta, D' \rangle / K' -
        m \, \langle \hat\Delta, D \rangle / K}{(1 - m) \, \|\hat\Delta\| \, \|\bar d\|}, \qquad
        m = \beta^K \, \frac{K \, (1 - \beta^{K'})}{K' \, (1 - \beta^K)}

    The sums over verdicts, in the terms of :class:`hybrid_predict.rules.verdict.Slopes`, begin anew
    with every window.
    """

    persistence: Any = 0.0  # running mean of q
    advance: Any = 0.0  # a, the drifts that predicted steps add to each full step
    windows: Any = 0  # in which q was measured
    product: Any = 0.0  # Σ <m, Δ> over verdicts
    own_product: Any = 0.0  # Σ <m, D>
    predicted: Any = 0.0  # number of their predicted steps
    verifying: Any = 0.0  # number of these verdicts
    end: Any = 0.0  # Σ <g, Δ> of the kind alone, with the gradients g of the verifying steps
    rate: Any = 0.0  # mean learning rate of the last window; 0 before the first one
    peak: Any = 0.0  # the largest one of all windows
    at_peak: Any = 0.0  # advance after the last window whose rate was not far below it

    def summary(self) -> dict[str, float | int]:
        """Return the numbers that are shown to a user."""
        return {"persistence": self.persistence, "advance": self.advance}


def weigh(pace: Pace, slopes: Slopes, end: Any, predicted: Any, refuted: Any) -> Pace:
    r"""Take in the slopes of predicted steps that stand, if they are finite and any were made.

    The advance begins anew with 0 if the test over many verdicts has ``refuted`` them. ``end`` is
    the slope :math:`\langle g, \Delta \rangle` of the kind's movement where it ends, with the
    verifying step's gradient g.
    """
    pace = pace._replace(advance=(1.0 - refuted) * pace.advance)
    product, own_product = slopes.product, slopes.own_product
    finite = (abs(product) < math.inf) & (abs(own_product) < math.inf) & (abs(end) < math.inf)
    new = pace._replace(
        product=pace.product + product,
        own_product=pace.own_product + own_product,
        predicted=pace.predicted + predicted,
        verifying=pace.verifying + 1.0,
        end=pace.end + end,
    )
    return select(finite & (predicted > 0), new, pace)


def outgrown(known: Any, rate: Any) -> Any:
    """Return whether a learning rate is far above a known one; not if that is 0."""
    return (rate > RISE * known) & (known > 0)


def renewed(pace: Pace, rate: Any) -> Pace:
    """Return the pace at a learning rate; it begins anew far above that of the last window.

    The advance is then at most that of earlier windows near such a rate, and 0 without any.
    """
    back = pace._replace(advance=library(*pace).minimum(pace.advance, pace.at_peak))
    anew = Pace(rate=pace.rate, peak=pace.peak)
    anew = select(outgrown(pace.peak, rate), anew, back)
    return select(outgrown(pace.rate, rate), anew, pace)


def measured_at(rate: Any, before: Pace, after: Pace) -> Pace:
    """Return the pace after a window of this mean learning rate; 0 if there was no window.

    A window compares its movement with a forecast from the window before. If the rate is far above
    those of all windows before, this comparison says nothing.
    """
    xp = library(rate, *before)
    new = select(outgrown(before.peak, rate), before, after)
    peak = xp.maximum(before.peak, rate)
    at_peak = xp.where(RISE * rate >= peak, new.advance, before.at_peak)
    return select(rate > 0, new._replace(rate=rate, peak=peak, at_peak=at_peak), before)


def worth(pace: Pace) -> Any:
    r"""Return how steeply predicted steps went downhill, in full steps; 1 if none was made.

    .. math:: w = \frac{\sum \langle m, \Delta \rangle / P}{\sum \langle m, D \rangle / V}

    over the V verifying steps since the last window and the P predicted steps before them.
    """
    xp = library(*pace)
    steepness = ratio(-pace.product * pace.verifying, -pace.own_product * pace.predicted)
    return xp.where(pace.predicted > 0, clip(steepness, 0.0, 1.0), 1.0)


def downhill(pace: Pace) -> Any:
    """Return 0 if the loss rose along the kind's predicted movement where it ended, else 1."""
    return library(*pace).where(pace.end > 0.0, 0.0, 1.0)


def carried(decay: Any, first: Any, second: Any) -> Any:
    r"""Return the share m of a window's movement that momentum carries into the next one.

    ``decay`` is :math:`\beta` of the average that moves the weights, in [0, 1); the windows have K
    and K' displacements.
    """
    xp = library(decay, first, second)
    into, within = decay**first * (1.0 - decay**second), 1.0 - decay**first
    return xp.where(decay > 0, into * first / (second * xp.where(decay > 0, within, 1.0)), 0.0)


def lag(decay: Any, first: Any, second: Any, late: Any, window: Pooled) -> Lagged:
    """Return the products of a ``window``'s forecast with the window after it.

    ``late`` is its product with the summed displacement there; see :func:`carried` for the rest.
    """
    share = carried(decay, first, second)
    rest = 1.0 - share
    squares = rest * window.forecast, rest * window.drift
    return Lagged(late / second, share * window.dot, *squares, window.chance)


def thresholds(advance: Any) -> Thresholds:
    """Return what an advance needs."""
    xp, pairs = library(advance), zip(NEAR, FAR, strict=True)
    return Thresholds(*(xp.where(advance > REACH, far, near) for near, far in pairs))


def follow(pace: Pace, lagged: Lagged, *, planned: bool) -> Pace:
    """Return the pace after one more window; one that measured nothing leaves it as it is.

    If the number of predicted steps is ``planned``, :func:`downhill` takes the place of
    :func:`worth`, and the advance is at most the first one if none was verified since the last
    window.
    """
    late, early, forecast, drift, chance = lagged
    xp = library(*pace, *lagged)
    square = xp.sqrt(xp.maximum(forecast, 0.0)) * xp.sqrt(xp.maximum(drift, 0.0))
    number = ratio(late - early, square)
    error = ratio(xp.sqrt(xp.maximum(chance, 0.0)), square)
    usable = (square > 0.0) & (square < math.inf) & (abs(number) + error < math.inf)
    mean = xp.where(pace.windows > 0, 0.5 * (pace.persistence + number), number)
    least, gained = xp.minimum(mean, number), downhill(pace) if planned else worth(pace)
    doubled = clip(2.0 * pace.advance, FIRST_ADVANCE, MOST)
    here, there = thresholds(pace.advance), thresholds(doubled)
    falls = (least < here.falling) | (gained < here.worth)
    rises = (least - 2.0 * error > there.rising) & (gained >= there.worth)
    risen = xp.where(rises, doubled, pace.advance)
    advance = xp.where(falls, 0.5 * pace.advance, risen)
    if planned:
        advance = xp.where(pace.end == 0.0, xp.minimum(advance, FIRST_ADVANCE), advance)
    advance = xp.where(advance < LEAST_ADVANCE, 0.0, advance)
    return select(usable, Pace(mean, advance, pace.windows + 1), pace)


def lasting(paces: Iterable[Pace]) -> Any:
    """Return whether any kind has an advance."""
    return sum(pace.advance for pace in paces) > 0.0


def per_full_step(parts: Iterable[tuple[float, Any]]) -> Any:
    """Return the number of predicted steps per full step, the mean advance over all weights.

    A part is a number of weights, for JAX a float because its integers have 32 bits, and their
    advance. The result is 0 if the parts that move have less than a quarter of the weights.
    """
    sizes, moving, moved = 0.0, 0.0, 0.0
    for size, advance in parts:
        sizes, moving = sizes + size, moving + size * (advance > 0)
        moved = moved + size * advance
    number = clip(moved / max(sizes, 1.0), 0.0, float(MOST_PREDICTED))
    xp = library(number)
    number = FINEST * xp.floor(number / FINEST + 0.5)
    return xp.where((number >= LEAST) & (LEAST_MOVED * moving >= sizes), number, 0.0)


def length(advance: Any, number: Any) -> Any:
    """Return the length of a predicted step in drifts, with ``number`` of them per full step."""
    return clip(ratio(advance, number), 0.0, LONGEST)


def paced(schedule: Schedule, position: Any, credit: Any) -> Any:
    """Return the number of predicted steps before the next full step; see `rules.schedule.due`.

    Of the ``credit``, the predicted steps that are due, only whole ones are taken.
    """
    xp, end = library(position, credit, *schedule), schedule.total - schedule.cooldown
    inside = (position >= schedule.warmup) & (position < end)
    return xp.where(inside, xp.minimum(xp.floor(credit), end - position), 0)
