"""Baselines and limits, and pauses that get longer."""

import math
import random

import pytest

from hybrid_predict.policy.limits import (
    CALM,
    DECAY,
    LEAST,
    MOST_PAUSES,
    PATIENCE,
    PAUSE,
    REACH,
    RETURN,
    Baseline,
    Limits,
)

NAN, INF = math.nan, math.inf


def read(losses, norms=1.0, limits=None, warmup=False):
    """The limits after these losses, with one norm or one each."""
    limits = limits or Limits([Baseline()])
    for k, loss in enumerate(losses):
        norm = norms[k] if isinstance(norms, list) else norms
        limits.learn(loss, [norm], warmup=warmup)
    return limits


def swinging(count=40, loss=1.0, norm=1.0, share=0.02):
    """The limits after readings that swing around a level, of which the first five are warm-up."""
    limits = Limits([Baseline()])
    for k in range(count):
        swing = 1.0 + share * (-1) ** k
        limits.learn(loss * swing, [norm * swing], warmup=k < 5)
    return limits


def test_a_baseline_is_known_after_enough_readings_and_skips_what_is_not_finite():
    losses = [value for k in range(LEAST) for value in (float(k % 2), NAN, INF)]
    for count in (3 * (LEAST - 1), 3 * LEAST):
        limits = read(losses[:count])
        assert (limits.largest_loss == INF) is (limits.loss.count < LEAST)
    assert limits.loss.mean == pytest.approx(0.5)
    assert math.sqrt(limits.loss.square) == pytest.approx(0.5)


def test_an_outlier_moves_a_baseline_no_further_than_its_reach():
    limits = swinging(100, share=0.1)
    mean = limits.loss.mean
    reach = REACH * math.sqrt(limits.loss.square)
    limits.learn(1e9, [1.0], warmup=False)
    assert limits.loss.mean - mean == pytest.approx((1 - DECAY) * reach)


@pytest.mark.parametrize("level", [-3.0, 1e-3])
def test_limits_are_as_far_off_as_documented(level):
    limits = swinging(loss=level, norm=5.0)
    mean, width = limits.loss.mean, math.sqrt(limits.loss.square)
    assert limits.largest_loss == pytest.approx(mean + max(12 * width, 3 * abs(mean)))
    # The norm swings by 2 %, so a factor of 100 is further off than eight deviations.
    assert limits.largest_norm(0) == pytest.approx(500.0, rel=0.05)


def test_each_optimizer_has_its_own_limit_which_is_infinite_at_first():
    limits = Limits([Baseline(), Baseline()])
    assert limits.largest_loss == limits.largest_norm(0) == limits.largest_norm(1) == INF
    for _ in range(10):
        limits.learn(1.0, [1.0, 1e-3], warmup=False)
    assert [limits.largest_norm(k) for k in (0, 1)] == pytest.approx([100.0, 0.1])


def test_pauses_double_and_the_alarm_after_the_last_ends_predicted_steps():
    limits = Limits([Baseline()])
    step = 100
    for length in (PAUSE, 2 * PAUSE, 4 * PAUSE):
        limits.alarm(step)
        limits.alarm(step + 1)  # no longer pause for one inside it
        assert limits.pausing(step + length)
        step += length + 1
        assert not limits.pausing(step)
    assert limits.pauses == MOST_PAUSES and not limits.exhausted
    limits.alarm(step)
    assert limits.exhausted and limits.pausing(10**9)


@pytest.mark.parametrize(("steps", "forgotten"), [(CALM, True), (CALM - 1, False)])
def test_a_long_calm_forgives(steps, forgotten):
    limits = Limits([Baseline()])
    limits.alarm(1)
    read([1.0] * steps, limits=limits)
    assert (limits.pauses == 0) is forgotten


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ([1.5] * 100, True),
        ([1.1] * 100, False),
        ([NAN] * 100, False),
        ([0.99**k for k in range(200)], False),
        ([1.5] * (PATIENCE // 2), False),
    ],
)
def test_a_loss_that_stays_a_fifth_above_the_warm_up_is_seen(losses, wanted):
    assert read(losses, limits=swinging()).risen is wanted


RANDOM = random.Random(0)
FALLING = [0.95**k for k in range(100)]


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ([*FALLING, *[0.9] * 30], True),
        ([*FALLING, *[0.9] * 30, *FALLING], True),  # for the rest of the run
        ([*FALLING, *[0.9] * (RETURN - 2)], False),
        ([*FALLING, *[0.2] * 100], False),  # less than half of what was gained
        ([RANDOM.gauss(1.0, 0.1) for _ in range(4000)], False),  # noise, and nothing gained
        ([RANDOM.gauss(1.0 - k / 2e4, 0.1) for k in range(4000)], False),
    ],
)
def test_a_loss_that_goes_back_by_half_of_its_gain_is_seen(losses, wanted):
    assert read(losses, limits=swinging()).changed is wanted
