"""How many predicted steps follow a full step, and how long they are, by a naive reference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libraries import in_every_library

from hybrid_predict import HybridConfig
from hybrid_predict.rules.pace import (
    FINEST,
    FIRST_ADVANCE,
    GROWTH,
    LEAST,
    LEAST_WORTH,
    LONGEST,
    MOST,
    TARGET,
    Lagged,
    Pace,
    Worth,
    carried,
    follow,
    length,
    paced,
    per_full_step,
)
from hybrid_predict.rules.schedule import schedule

advances = st.floats(0.0, MOST)
persistences = st.floats(-2.0, 2.0)
paces = st.builds(Pace, persistences, advances, st.integers(0, 50))
worths = st.floats(0.0, 1.0)


def measured(q, early=0.0, forecast=4.0, drift=9.0):
    """A window in which the persistence is q."""
    return Lagged(q * math.sqrt(forecast * drift) + early, early, forecast, drift)


def naive(pace, q, worth):
    """The pace after a window, case by case."""
    mean = (pace.persistence + q) / 2 if pace.windows else q
    wanted = (1 + pace.advance) * max(0.0, min(mean, q)) / TARGET - 1
    most = min(MOST, max(FIRST_ADVANCE, GROWTH * pace.advance))
    if worth < LEAST_WORTH:
        most = pace.advance * worth / LEAST_WORTH
    return mean, min(max(0.0, min(wanted, MOST)), most), pace.windows + 1


@given(pace=paces, q=persistences, early=st.floats(-1.0, 1.0), worth=worths)
def test_a_pace_follows_its_windows_within_bounds(pace, q, early, worth):
    new = follow(pace, measured(q, early), worth)
    assert new == pytest.approx(naive(pace, q, worth), abs=1e-9)
    assert 0.0 <= new.advance <= MOST
    assert new.advance <= max(FIRST_ADVANCE, GROWTH * pace.advance)


@given(pace=paces, qs=st.tuples(persistences, persistences), worth=worths)
def test_what_lasts_longer_never_has_fewer_predicted_steps(pace, qs, worth):
    low, high = (follow(pace, measured(q), worth).advance for q in sorted(qs))
    assert low <= high


@given(pace=paces, q=persistences, two=st.tuples(worths, worths))
def test_predicted_steps_of_little_worth_become_fewer(pace, q, two):
    low, high = (follow(pace, measured(q), worth).advance for worth in sorted(two))
    assert low <= high
    if min(two) < LEAST_WORTH:
        assert low <= pace.advance * min(two) / LEAST_WORTH + 1e-12


@pytest.mark.parametrize("q", [0.0, -1.0])
def test_what_does_not_last_ends_predicted_steps_at_once(q):
    assert follow(Pace(1.0, MOST, 9), measured(q), 1.0).advance == 0.0


def test_what_always_lasts_leads_to_the_largest_advance_and_stays_there():
    pace, found = Pace(), []
    for _ in range(30):
        pace = follow(pace, measured(1.0), 1.0)
        found.append(pace.advance)
    assert found[0] <= FIRST_ADVANCE and found[-1] == MOST
    assert found == sorted(found)


NOTHING = {
    "zeros": {"late": 0.0, "early": 0.0, "forecast": 0.0, "drift": 0.0},
    "no forecast": {"forecast": 0.0},
    "no drift": {"drift": 0.0},
    "a negative square": {"drift": -1.0},
    **{f"{name}: {x}": {name: x} for name in Lagged._fields for x in (math.nan, math.inf)},
    "late: -inf": {"late": -math.inf},
}


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("changes", NOTHING.values(), ids=NOTHING.keys())
@pytest.mark.parametrize("worth", [0.0, 1.0])
def test_a_window_that_measured_nothing_changes_nothing(changes, worth):
    pace, empty = Pace(0.5, 1.0, 3), measured(1.0, 0.5)._replace(**changes)
    for found in in_every_library(follow, pace, empty, worth):
        assert found == pytest.approx(list(pace))


SEQUENCES = {
    "rises": [0.5] * 6,
    "falls": [1.0, 1.0, 0.9 * TARGET, 0.5 * TARGET],
    "never": [-0.3, 0.0, 0.01],
    "changes": [1.0, 0.1, 1.0, -1.0, 0.7],
}


@pytest.mark.parametrize("worth", [1.0, 0.5 * LEAST_WORTH])
@pytest.mark.parametrize("qs", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_every_library_keeps_the_same_pace(qs, worth):
    def rule(start, worth, *windows):
        for window in windows[:-1]:
            start = follow(start, window, 1.0)
        return follow(start, windows[-1], worth)

    wanted = Pace()
    for q in qs[:-1]:
        wanted = Pace(*naive(wanted, q, 1.0))
    wanted = naive(wanted, qs[-1], worth)
    for found in in_every_library(rule, Pace(), worth, *map(measured, qs)):
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


STEPS = st.integers(1, 60)


@given(decay=st.floats(0.01, 0.99), first=STEPS, second=STEPS)
def test_momentum_carries_the_share_that_a_decaying_movement_keeps(decay, first, second):
    movement = decay ** np.arange(first + second)
    kept = movement[first:].mean() / movement[:first].mean()
    assert carried(decay, first, second) == pytest.approx(kept, rel=1e-6)
    assert 0.0 <= kept <= 1.0


def test_every_library_carries_the_same_share():
    for decay in (0.0, 0.5, 0.99):
        wanted, *others = in_every_library(carried, decay, 20, 10)
        assert wanted[0] == (0.0 if decay == 0.0 else pytest.approx(carried(decay, 20, 10)))
        for found in others:
            assert found == pytest.approx(wanted, rel=1e-3)


def persistence(displacements, decay, steps=20):
    """The persistence over the last two windows, of the drift before them as a forecast."""
    past, first, second = np.split(displacements, [-2 * steps, -steps])
    weights = 0.9 ** np.arange(len(past))[::-1]
    forecast = weights @ past / weights.sum()
    m, (late, early) = carried(decay, steps, steps), (forecast @ w.mean(0) for w in (second, first))
    square = (1 - m) * forecast @ forecast
    return follow(Pace(), Lagged(late, m * early, square, square), 1.0).persistence


def momentum(gradients, decay):
    moved = np.zeros_like(gradients)
    for k, gradient in enumerate(gradients):
        moved[k] = decay * moved[k - 1] + (1 - decay) * gradient
    return moved


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.98])
def test_momentum_alone_is_no_persistence(decay):
    gradients = np.random.default_rng(0).normal(size=(300, 20_000))
    assert abs(persistence(momentum(gradients, decay), decay)) < TARGET
    drift = momentum(np.ones((1500, 4)), decay)
    assert persistence(drift, decay) == pytest.approx(1.0, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 10**6), advances), max_size=6))
def test_the_number_of_predicted_steps_is_the_mean_over_all_weights(parts):
    number = per_full_step(parts)
    sizes, moved = [size for size, _ in parts], [size * a for size, a in parts]
    mean = sum(moved) / sum(sizes) if parts else 0.0
    assert number == pytest.approx(mean if number else 0.0, abs=FINEST)
    assert number > 0 or mean < LEAST + FINEST
    assert number == 0.0 or LEAST <= number <= MOST * (1 + 1e-9)
    for _, advance in parts:
        drifts = length(advance, number)
        assert 0.0 <= drifts <= LONGEST
        assert drifts * number <= advance + LONGEST * FINEST


def test_kinds_alike_take_steps_of_the_length_that_is_wanted():
    for advance in (0.5, MOST):
        number = per_full_step([(100, advance), (3, advance)])
        assert length(advance, number) == pytest.approx(min(1.0, LONGEST))
    assert length(1.0, 0.0) == 0.0


def test_every_library_has_the_same_number_and_length():
    def rule(*numbers):
        number = per_full_step(zip((100, 7, 50), numbers, strict=True))
        return number, [length(x, number) for x in numbers]

    for numbers in ((0.5, MOST, 0.0), (0.0, 0.0, 0.0), (0.0, 0.1 * LEAST, 0.0)):
        wanted, *others = in_every_library(rule, *numbers)
        for found in others:
            assert found == pytest.approx(wanted, rel=1e-5)


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


def test_every_library_finds_the_same_steps_due():
    planned = make(40, warmup_steps=5, cooldown_steps=4)
    for position in (0, 4, 5, 20, 34, 35, 36, 39):
        for credit in (0.0, 0.99, 1.0, 2.5, 4.9):
            wanted, *others = in_every_library(paced, planned, position, credit)
            assert all(found == wanted for found in others)


def test_fractions_of_predicted_steps_add_up():
    planned, credit, made = make(10**6, warmup_steps=0), 0.0, 0
    for position in range(1, 1001):
        made += paced(planned, position, credit)
        credit = credit % 1.0 + 0.3
    assert made == pytest.approx(300, abs=1)


ONE = Worth(product=-2.0, own_product=-1.0, predicted=4.0, verifying=2.0)


@pytest.mark.parametrize(
    ("worth", "number"),
    [
        (Worth(), 1.0),
        (ONE, 1.0),
        (ONE._replace(product=-0.5), 0.25),
        (ONE._replace(product=-9.0), 1.0),
        (ONE._replace(product=1.0), 0.0),
        (ONE._replace(own_product=1.0), 0.0),
        (ONE._replace(own_product=0.0), 0.0),
    ],
)
def test_worth_is_the_share_of_a_full_step_s_descent(worth, number):
    for (found,) in in_every_library(lambda worth: worth.number, worth):
        assert found == pytest.approx(number)
