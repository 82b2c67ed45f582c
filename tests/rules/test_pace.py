"""How many predicted steps follow a full step, and how long they are, by a naive reference."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from libraries import in_every_library

from hybrid_predict import HybridConfig
from hybrid_predict.config import MOST_PREDICTED
from hybrid_predict.rules.pace import (
    FAR,
    FINEST,
    FIRST_ADVANCE,
    LEAST,
    LEAST_ADVANCE,
    LONGEST,
    MOST,
    NEAR,
    REACH,
    RISE,
    Lagged,
    Pace,
    carried,
    downhill,
    follow,
    length,
    measured_at,
    paced,
    per_full_step,
    renewed,
    weigh,
    worth,
)
from hybrid_predict.rules.schedule import schedule
from hybrid_predict.rules.verdict import Slopes

advances = st.floats(0.0, MOST)
persistences = st.floats(-2.0, 2.0)
ends = st.sampled_from([-1.0, 0.0, 1e-9, 1.0])
shown = st.tuples(persistences, advances, st.integers(0, 50), ends)
paces = shown.map(lambda x: Pace(*x[:3], end=x[3]))
errors = st.floats(0.0, 0.1)


def measured(q, error=0.0, early=0.0, forecast=4.0, drift=9.0):
    """A window in which the persistence is q, with its standard deviation by chance."""
    size = math.sqrt(forecast * drift)
    return Lagged(q * size + early, early, forecast, drift, (error * size) ** 2)


def naive(pace, q, planned, error=0.0):
    """The pace after a window, case by case."""
    mean = (pace.persistence + q) / 2 if pace.windows else q
    low, advance = min(mean, q), pace.advance
    gained = worth(pace) if pace.predicted else 1.0
    if planned:
        gained = 0.0 if pace.end > 0 else 1.0
    doubled = min(MOST, max(FIRST_ADVANCE, 2 * advance))
    rising, _, enough = FAR if doubled > REACH else NEAR
    _, falling, least = FAR if advance > REACH else NEAR
    if low < falling or gained < least:
        advance = advance / 2
    elif low - 2 * error > rising and gained >= enough:
        advance = doubled
    if planned and not pace.end:
        advance = min(advance, FIRST_ADVANCE)
    return Pace(mean, advance if advance >= LEAST_ADVANCE else 0.0, pace.windows + 1)


def slopes(product, own_product=-1.0):
    return Slopes(product, 1.0, own_product, 1.0)


@given(pace=paces, q=persistences, early=st.floats(-1.0, 1.0), error=errors, planned=st.booleans())
def test_a_pace_follows_its_windows_case_by_case(pace, q, early, error, planned):
    low = min((pace.persistence + q) / 2, q)
    edges = [edge for each in (NEAR, FAR) for edge in (each.falling, each.rising + 2 * error)]
    assume(all(abs(x - edge) > 1e-9 for x in (low, q) for edge in edges))
    new = follow(pace, measured(q, error, early), planned=planned)
    assert new == pytest.approx(naive(pace, q, planned, error), abs=1e-9)
    assert 0.0 <= new.advance <= MOST


@given(pace=paces, qs=st.tuples(persistences, persistences), planned=st.booleans())
def test_what_lasts_longer_never_has_fewer_predicted_steps(pace, qs, planned):
    low, high = (follow(pace, measured(q), planned=planned).advance for q in sorted(qs))
    assert low <= high


HALVES = [8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.0]
BETWEEN, FAR_BETWEEN = (FAR.falling + NEAR.rising) / 2, (FAR.falling + FAR.rising) / 2


@pytest.mark.parametrize(
    ("advance", "q", "steep", "wanted"),
    [
        (0.0, 1.0, 1.0, [FIRST_ADVANCE, 1.0, 2.0, REACH, 8.0, MOST, MOST]),
        *((MOST, q, 1.0, HALVES) for q in (-1.0, 2 * NEAR.falling)),
        *((a, q, 1.0, [a]) for a in (0.0, 1.0, REACH) for q in (NEAR.falling / 2, NEAR.rising / 2)),
        *((2.0, q, 1.0, [4.0, 4.0]) for q in (BETWEEN, FAR_BETWEEN)),
        (8.0, BETWEEN, 1.0, [4.0, 4.0]),
        (8.0, FAR_BETWEEN, 1.0, [8.0, 8.0]),
        *((a, 1.0, 0.0, [a / 2]) for a in (2.0, REACH, 8.0)),
        *((a, 1.0, 0.3, [4.0]) for a in (2.0, REACH, 8.0)),
        *((a, 1.0, 0.7, [2 * a]) for a in (2.0, REACH, 8.0)),
    ],
)
def test_an_advance_follows_persistence_and_the_worth_of_predicted_steps(advance, q, steep, wanted):
    pace, found = weigh(Pace(q, advance, 9), slopes(-steep), 0.0, 1, False), []
    assert worth(pace) == pytest.approx(steep)
    for _ in wanted:
        pace = follow(pace, measured(q), planned=False)
        found.append(pace.advance)
        assert (pace.predicted, pace.verifying) == (0, 0)
    assert found == wanted


@pytest.mark.parametrize(
    ("advance", "q", "end", "wanted"),
    [
        *((a, 1.0, -0.1, 2 * a) for a in (FIRST_ADVANCE, 2.0, REACH, 8.0)),
        *((a, 1.0, 0.1, a / 2) for a in (FIRST_ADVANCE, 2.0, REACH, 8.0)),
        *((a, 1.0, 0.0, FIRST_ADVANCE) for a in (0.0, FIRST_ADVANCE, 2.0, MOST)),
        (0.0, 1.0, 0.1, 0.0),
        (0.25, BETWEEN, 0.0, FIRST_ADVANCE),
        (2.0, BETWEEN / 4, -0.1, 2.0),
        (2.0, -1.0, -0.1, 1.0),
        (LEAST_ADVANCE, 1.0, 0.1, 0.0),
    ],
)
def test_with_a_number_an_advance_follows_the_slope_where_predicted_steps_end(
    advance, q, end, wanted
):
    pace = Pace(q, advance, 9)
    for part in (2 * end, -end):  # two verdicts
        pace = weigh(pace, slopes(5.0), part, 1, False)
    assert (pace.end, downhill(pace)) == (pytest.approx(end), float(end <= 0))
    pace = follow(pace, measured(q), planned=True)
    assert (pace.advance, pace.end) == (wanted, 0.0)


def test_a_failed_test_leads_back_to_no_predicted_steps():
    for found in in_every_library(weigh, Pace(1.0, MOST, 9), slopes(-1.0), 0.5, 2.0, True):
        assert Pace(*found) == Pace(1.0, 0.0, 9, -1.0, -1.0, 2.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("known", "peak", "rate", "advance"),
    [
        (0.0, 0.0, 1.0, MOST),
        (1.0, 1.0, 0.9 * RISE, MOST),
        (1.0, 1.0, 1.1 * RISE, 0.0),
        (1.0, 9.0, 1e-3, MOST),
        (1.0, 9.0, 0.0, MOST),
        (1.0, 9.0, 9.0, 2.0),
        (1.0, 9.0, 10.0 * RISE, 0.0),
    ],
)
def test_an_advance_is_that_of_windows_at_such_a_learning_rate(known, peak, rate, advance):
    pace = Pace(1.0, MOST, 9, -1.0, -1.0, 2.0, 1.0, 0.5, known, peak, 2.0)
    wanted = pace._replace(advance=advance) if advance else Pace(rate=known, peak=peak)
    for found in in_every_library(renewed, pace, rate):
        assert found == pytest.approx(list(wanted))
    new = Pace(0.5, 1.0, 10) if advance else pace
    at_peak = new.advance if RISE * rate >= peak else 2.0
    wanted = new._replace(rate=rate, peak=max(peak, rate), at_peak=at_peak) if rate else pace
    for found in in_every_library(measured_at, rate, pace, Pace(0.5, 1.0, 10)):
        assert found == pytest.approx(list(wanted))


NOTHING = {
    "zeros": {"late": 0.0, "early": 0.0, "forecast": 0.0, "drift": 0.0},
    "no forecast": {"forecast": 0.0},
    "no drift": {"drift": 0.0},
    "a negative square": {"drift": -1.0},
    **{f"{name}: {x}": {name: x} for name in Lagged._fields for x in (math.nan, math.inf)},
    "late: -inf": {"late": -math.inf},
}
FOLLOW = [partial(follow, planned=planned) for planned in (False, True)]


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("changes", NOTHING.values(), ids=NOTHING.keys())
@pytest.mark.parametrize("steep", [0.0, 1.0])
@pytest.mark.parametrize("rule", FOLLOW, ids=["not planned", "planned"])
def test_a_window_that_measured_nothing_changes_nothing(changes, steep, rule):
    pace, empty = Pace(0.5, 1.0, 3), measured(1.0, early=0.5)._replace(**changes)
    pace = weigh(pace, slopes(-steep), steep, 1, False)
    for found in in_every_library(rule, pace, empty):
        assert found == pytest.approx(list(pace))


@pytest.mark.parametrize("product", [math.nan, math.inf, -math.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_slopes_that_are_not_finite_and_steps_that_were_not_made_do_not_count(product):
    pace = weigh(Pace(), slopes(-1.0), -1.0, 3.0, False)
    for one, end, predicted in (
        (slopes(product), 1.0, 1.0),
        (slopes(-1.0, product), 1.0, 1.0),
        (slopes(-1.0), product, 1.0),
        (slopes(5.0), 1.0, 0.0),
    ):
        for found in in_every_library(weigh, pace, one, end, predicted, False):
            assert found == pytest.approx(list(pace))


STEPS = st.integers(1, 60)


@given(decay=st.floats(0.01, 0.99), first=STEPS, second=STEPS)
def test_momentum_carries_the_share_that_a_decaying_movement_keeps(decay, first, second):
    movement = decay ** np.arange(first + second)
    kept = movement[first:].mean() / movement[:first].mean()
    assert carried(decay, first, second) == pytest.approx(kept, rel=1e-6)
    assert 0.0 <= kept <= 1.0


def persistence(displacements, decay, steps=20):
    """The persistence over the last two windows, of the drift before them as a forecast."""
    past, first, second = np.split(displacements, [-2 * steps, -steps])
    weights = 0.9 ** np.arange(len(past))[::-1]
    forecast = weights @ past / weights.sum()
    m, (late, early) = carried(decay, steps, steps), (forecast @ w.mean(0) for w in (second, first))
    square = (1 - m) * forecast @ forecast
    return follow(Pace(), Lagged(late, m * early, square, square), planned=False).persistence


def momentum(gradients, decay):
    moved = np.zeros_like(gradients)
    for k, gradient in enumerate(gradients):
        moved[k] = decay * moved[k - 1] + (1 - decay) * gradient
    return moved


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.98])
def test_momentum_alone_is_no_persistence(decay):
    gradients = np.random.default_rng(0).normal(size=(300, 20_000))
    assert abs(persistence(momentum(gradients, decay), decay)) < NEAR.rising
    drift = momentum(np.ones((1500, 4)), decay)
    assert persistence(drift, decay) == pytest.approx(1.0, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 10**6), advances), max_size=6))
def test_the_number_of_predicted_steps_is_the_mean_over_all_weights(parts):
    number = per_full_step(parts)
    assert number <= MOST_PREDICTED
    sizes, moved = [size for size, _ in parts], [size * a for size, a in parts]
    mean = min(sum(moved) / sum(sizes), MOST_PREDICTED) if parts else 0.0
    few = 4 * sum(size for size, a in parts if a > 0) < sum(sizes)
    assert number == pytest.approx(mean if number else 0.0, abs=FINEST)
    assert number > 0 or few or mean < LEAST + FINEST
    assert number == 0.0 or (number >= LEAST and not few)
    for _, advance in parts:
        drifts = length(advance, number)
        assert 0.0 <= drifts <= LONGEST
        assert drifts * number <= advance + LONGEST * FINEST


def test_kinds_alike_take_steps_of_the_length_that_is_wanted():
    for advance, wanted in ((0.5, 1.0), (4.0, 1.0), (8.0, 2.0), (MOST, LONGEST)):
        number = per_full_step([(100, advance), (3, advance)])
        assert length(advance, number) == pytest.approx(wanted)
    assert length(1.0, 0.0) == 0.0


def make(total, **changes):
    return schedule(HybridConfig(speedup="auto", total_steps=total, **changes))


lengths = st.one_of(st.integers(0, 50), st.floats(0, 0.9))


@given(
    total=st.integers(1, 300),
    warmup=lengths,
    cooldown=lengths,
    numbers=st.lists(st.floats(0.0, MOST), min_size=1),
    seed=st.randoms(use_true_random=False),
)
def test_a_run_of_any_pace_never_overshoots(total, warmup, cooldown, numbers, seed):
    planned, steps, credit = make(total, warmup_steps=warmup, cooldown_steps=cooldown), "", 0.0
    for taken in range(total):
        count = paced(planned, len(steps), credit)
        assert count == int(count) and 0 <= count <= credit
        stands = seed.random() < 0.7
        steps += "P" * int(count if stands else 0) + "F"
        credit = credit % 1.0 + numbers[taken % len(numbers)]
        if len(steps) >= total:
            break
    assert len(steps) == total
    assert "P" not in steps[: planned.warmup]
    assert "P" not in steps[total - planned.cooldown :]


def test_fractions_of_predicted_steps_add_up():
    planned, credit, made = make(10**6, warmup_steps=0), 0.0, 0
    for position in range(1, 1001):
        made += paced(planned, position, credit)
        credit = credit % 1.0 + 0.3
    assert made == pytest.approx(300, abs=1)


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({}, 1.0),
        ({"predicted": 0.0}, 1.0),
        ({"product": -0.5}, 0.25),
        ({"product": -9.0}, 1.0),
        ({"product": 1.0}, 0.0),
        ({"own_product": 1.0}, 0.0),
        ({"own_product": 0.0}, 0.0),
    ],
)
def test_worth_is_the_share_of_a_full_step_s_descent(changes, number):
    pace = Pace(product=-2.0, own_product=-1.0, predicted=4.0, verifying=2.0)._replace(**changes)
    for (found,) in in_every_library(worth, pace):
        assert found == pytest.approx(number)
