"""What windows show of forecasts: skill and its bound, fitted lengths, persistence and advance."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hybrid_predict.policy.confidence import (
    FAR,
    FIRST_ADVANCE,
    LEAST_ADVANCE,
    MEMORY,
    MOST,
    NEAR,
    REACH,
    RESOLUTION,
    RISE,
    SHORTEST,
    START,
    Confidence,
    Skill,
    Window,
    steps_until_known,
    window_bounds,
)
from hybrid_predict.policy.verdict import Slopes


def window(cosine=0.5, moved=1.0, chance=0.0, made=1.0, **changes):
    """A window whose forecast, ``made`` drifts long, and mean displacement have a given cosine."""
    size = moved * made
    whole = Window(20, cosine * size, moved**2, made**2, 1.0, chance * size**2)
    return whole._replace(**changes)


def read(*windows):
    skill = Skill()
    for one in windows:
        skill.add(one)
    return skill


BEGINS = {False: [10, 20, 40, 60, 80], True: [2, 5, 10, 20, 40, 60, 80]}
"""After how many displacements windows of 20 begin, by whether short ones come first."""


@pytest.mark.parametrize("short", BEGINS)
def test_windows_follow_each_other_from_half_or_an_eighth_on(short):
    begins = [0, *BEGINS[short]]
    for seen in range(80):
        begin = max(x for x in begins if x <= seen)
        wanted = begin, begins[begins.index(begin) + 1]
        assert window_bounds(seen, 20, short=short) == wanted
    assert steps_until_known(20, short=short) == BEGINS[short][2]


def test_nothing_is_known_before_two_windows():
    skill = read(window(0.9))
    assert not skill.known and skill.lower == -1.0
    skill.add(window(0.9))
    assert skill.known and skill.lower == pytest.approx(0.81 - 2 * RESOLUTION / math.sqrt(2))
    skill = read(*[window(0.3, chance=0.05)] * 4)
    assert skill.lower == pytest.approx(0.09 - 1.5 * math.sqrt(3) * 0.05)


def test_the_bound_is_two_standard_errors_below_the_mean():
    count = MEMORY
    values = np.linspace(0.1, 0.9, count)
    skill = read(*(window(math.sqrt(value)) for value in values))
    assert skill.mean == pytest.approx(values.mean())
    error = values.std(ddof=1) / math.sqrt(count)
    assert skill.lower == pytest.approx(values.mean() - 2 * error)


NOTHING = {
    "still": {"moved": 0.0},
    "no forecast": {"forecast": 0.0},
    "not finite": {"moved": np.nan},
    "infinite": {"dot": np.inf},
}


@pytest.mark.parametrize("changes", NOTHING.values(), ids=NOTHING)
def test_a_window_that_says_nothing_is_skipped(changes):
    one = closed(window(0.4), window(0.4, late=0.2))
    before = replace(one, latest=window(), skill=replace(one.skill))
    one.add(window(late=0.2, **changes), decay=0.0, planned=False)
    assert (one.skill, one.length) == (before.skill, before.length)
    assert not np.isnan(one.advance) and not np.isnan(one.persistence)


def closed(*windows, planned=False, decay=0.0, **known):
    """What is known after these windows."""
    one = Confidence(**known)
    for each in windows:
        one.add(each, decay=decay, planned=planned)
    return one


@pytest.mark.parametrize(
    ("best", "wanted", "made"), [(0.3, 0.3, 0.2), (3.0, 1.0, 1.0), (-0.5, 0.0, 1.0)]
)
def test_the_fitted_length_is_that_of_least_squares_and_at_most_one_forecast(best, wanted, made):
    assert Confidence().multiple == START
    cosine = math.copysign(0.5, best)
    windows = [window(cosine, moved=2 * abs(best) * made, made=made)] * 3
    one = closed(*windows)
    assert one.multiple == pytest.approx(wanted)
    assert one.length == pytest.approx(wanted * made)
    assert closed(*windows, fits=False).length == pytest.approx(made)


def test_the_next_predicted_step_must_not_be_short_however_sure_it_is():
    one = closed(*[window(0.9, moved=0.25)] * 4)
    assert one.skill.lower > 0.5 and one.length < SHORTEST and not one.enough
    assert replace(one, best=SHORTEST).enough


def measured(q):
    """Two windows in which the persistence is q."""
    before = Window(20, 0.0, 1.0, 4.0, 9.0)
    return before, before._replace(late=6.0 * q)


BETWEEN, FAR_BETWEEN = (FAR.falling + NEAR.rising) / 2, (FAR.falling + FAR.rising) / 2


def slopes(product, own_product=-1.0):
    return Slopes(product, 1.0, own_product, 1.0)


@pytest.mark.parametrize(
    ("advance", "q", "steep", "wanted"),
    [
        (0.0, 1.0, 1.0, FIRST_ADVANCE),
        (MOST, 1.0, 1.0, MOST),
        (8.0, -1.0, 1.0, 4.0),
        (0.125, -1.0, 1.0, 0.0),
        (1.0, NEAR.rising / 2, 1.0, 1.0),
        (2.0, BETWEEN, 1.0, 4.0),
        (4.0, FAR_BETWEEN, 1.0, 4.0),
        (8.0, BETWEEN, 1.0, 4.0),
        (8.0, FAR_BETWEEN, 1.0, 8.0),
        (2.0, 1.0, 0.0, 1.0),
        *((a, 1.0, 0.3, 4.0) for a in (2.0, 8.0)),
        *((a, 1.0, 0.7, 2 * a) for a in (REACH, 8.0)),
    ],
)
def test_an_advance_follows_persistence_and_the_worth_of_predicted_steps(advance, q, steep, wanted):
    before, after = measured(q)
    one = Confidence(persistence=q, advance=advance, measured=9, latest=before)
    one.weigh(slopes(-steep), 0.0, 1)
    assert one.worth == pytest.approx(steep)
    one.add(after, decay=0.0, planned=False)
    assert one.advance == wanted
    assert (one.predicted, one.verifying, one.worth) == (0, 0, 1.0)


@pytest.mark.parametrize(
    ("advance", "end", "wanted"),
    [
        (2.0, -0.1, 4.0),
        (2.0, 0.1, 1.0),
        *((a, 0.0, FIRST_ADVANCE) for a in (0.0, MOST)),
        (LEAST_ADVANCE, 0.1, 0.0),
    ],
)
def test_with_a_number_an_advance_follows_the_slope_where_predicted_steps_end(advance, end, wanted):
    before, after = measured(1.0)
    one = Confidence(persistence=1.0, advance=advance, measured=9, latest=before)
    for part in (2 * end, -end):  # two verdicts
        one.weigh(slopes(5.0), part, 1)
    one.add(after, decay=0.0, planned=True)
    assert (one.advance, one.end) == (wanted, 0.0)


def test_slopes_that_are_not_finite_do_not_count():
    one, product = Confidence(), math.nan
    one.weigh(slopes(-1.0), -1.0, 3)
    before = replace(one)
    for each, end in ((slopes(product), 1.0), (slopes(-1.0, product), 1.0), (slopes(-1), product)):
        one.weigh(each, end, 1)
    assert one == before


@pytest.mark.parametrize(
    ("known", "rate", "advance"),
    [(0.0, 1.0, MOST), (1.0, 0.9 * RISE, MOST), (1.0, 1.1 * RISE, 0.0), (1.0, 0.0, MOST)],
)
def test_an_advance_is_that_of_windows_at_such_a_learning_rate(known, rate, advance):
    one = Confidence(advance=MOST, measured=9, rate=known)
    assert one.renew(rate) is (advance < MOST)
    assert one.advance == advance
    assert one.measured == (9 if advance else 0)


@pytest.mark.parametrize(("rate", "wanted"), [(1.0, 2 * REACH), (2.1 * RISE, 0.0)])
def test_a_window_at_a_rate_far_above_says_nothing(rate, wanted):
    before, after = measured(1.0)
    one = Confidence(advance=REACH, measured=1, rate=2.0, latest=before)
    one.add(after._replace(rate=rate), decay=0.0, planned=False)
    assert (one.rate, one.advance) == (rate, wanted)


def persistence(displacements, decay, steps=20):
    """The persistence over the last two windows, of the drift before them as a forecast."""
    past, first, second = np.split(displacements, [-2 * steps, -steps])
    weights = 0.9 ** np.arange(len(past))[::-1]
    forecast = weights @ past / weights.sum()
    late, early = (float(forecast @ each.mean(0)) for each in (second, first))
    square = float(forecast @ forecast)
    before = Window(steps, early, 1.0, square, square)
    return closed(before, before._replace(late=late), decay=decay).persistence


def momentum(gradients, decay):
    moved = np.zeros_like(gradients)
    for k, gradient in enumerate(gradients):
        moved[k] = decay * moved[k - 1] + (1 - decay) * gradient
    return moved


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_momentum_alone_is_no_persistence(decay):
    gradients = np.random.default_rng(0).normal(size=(300, 10_000))
    assert abs(persistence(momentum(gradients, decay), decay)) < NEAR.rising
    drift = momentum(np.ones((1500, 4)), decay)
    assert persistence(drift, decay) == pytest.approx(1.0, rel=1e-3)
