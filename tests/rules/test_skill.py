"""Skill and its bound, from few windows; and lengths that are fitted by least squares."""

import math
from functools import partial

import numpy as np
import pytest
from libraries import in_every_library

from hybrid_predict.rules.skill import (
    MEMORY,
    RESOLUTION,
    SHORTEST,
    Pooled,
    Skill,
    add_squares,
    add_window,
    enough,
    fit,
    known,
    lower,
    pool,
    steps_until_known,
    window_bounds,
    window_length,
)


def window(cosine, moved=1.0, chance=0.0, made=1.0, following=None):
    """A window whose forecast and displacement have a given cosine.

    ``moved`` is the length of the mean displacement, ``made`` that of the forecast and
    ``following`` that of the next one, in lengths of the drift.
    """
    size = moved * made
    square = (made if following is None else following) ** 2
    return Pooled(cosine * size, moved**2, made**2, 1.0, chance * size**2, square)


def read(*windows, skill=None):
    skill = skill or Skill()
    for one in windows:
        skill = add_window(skill, one)
    return skill


def test_a_window_is_as_long_as_the_optimizer_remembers():
    assert [window_length(m) for m in (0.0, 0.5, 0.9, 0.95, 0.99)] == [20, 20, 20, 40, 200]


BEGINS = {False: [10, 20, 40, 60, 80], True: [2, 5, 10, 20, 40, 60, 80]}
"""After how many displacements windows of 20 begin, by whether short ones come first."""


@pytest.mark.parametrize("short", BEGINS)
def test_windows_follow_each_other_from_half_or_an_eighth_on(short):
    begins = [0, *BEGINS[short]]
    bounds = partial(window_bounds, short=short)
    for seen in range(80):
        begin = max(x for x in begins if x <= seen)
        wanted = begin, begins[begins.index(begin) + 1]
        for found in in_every_library(bounds, seen, 20):
            assert tuple(found) == wanted
    assert steps_until_known(20, short=short) == BEGINS[short][2]


def test_nothing_is_known_before_two_windows():
    skill = read(window(0.9))
    assert not known(skill) and not enough(skill) and lower(skill) == -1.0
    skill = read(window(0.9), skill=skill)
    assert known(skill) and enough(skill)
    assert skill.mean == pytest.approx(0.81)
    assert lower(skill) == pytest.approx(0.81 - 2 * RESOLUTION / math.sqrt(2))


def test_a_negative_cosine_is_negative_skill_and_worse_than_no_forecast():
    skill = read(*[window(-0.5, made=0.5)] * 3)
    assert skill.mean == pytest.approx(-0.25)
    assert skill.error > 1.0 and not enough(skill)


@pytest.mark.parametrize("count", [2, 5, MEMORY])
def test_the_bound_is_two_standard_errors_below_the_mean(count):
    values = np.linspace(0.1, 0.9, count)
    skill = read(*(window(math.sqrt(value)) for value in values))
    assert skill.mean == pytest.approx(values.mean())
    error = values.std(ddof=1) / math.sqrt(count)
    assert lower(skill) == pytest.approx(values.mean() - 2 * error)


def test_forecasts_that_chance_explains_have_a_wide_interval():
    skill = read(*[window(0.3, chance=0.05)] * 4)
    assert lower(skill) == pytest.approx(0.09 - 1.5 * math.sqrt(3) * 0.05)
    assert not enough(skill)


@pytest.mark.parametrize(("made", "following"), [(0.1, 0.1), (1.0, 0.2)])
def test_the_next_predicted_step_must_not_be_short_however_sure_it_is(made, following):
    skill = read(*[window(0.9, moved=0.25, made=made, following=following)] * 4)
    assert lower(skill) > 0.5 and not enough(skill)
    assert skill.length == pytest.approx(following)
    assert enough(read(window(0.9, moved=0.25, following=SHORTEST), skill=skill))


@pytest.mark.parametrize(("moved", "made"), [(0.5, 0.5), (2.0, 0.5), (0.5, 0.1)])
def test_fitted_length_and_error_are_those_of_the_forecast_that_was_made(moved, made):
    cosine = 0.6
    skill = read(*[window(cosine, moved=moved, made=made)] * 3)
    assert skill.fitted == pytest.approx(cosine * moved)
    off = np.array([made, 0.0]) - moved * np.array([cosine, math.sqrt(1 - cosine**2)])
    assert skill.error == pytest.approx(float(off @ off) / moved**2)


def test_old_windows_are_forgotten():
    skill = read(*[window(0.9)] * 50, *[window(-0.9)] * 50)
    assert skill.mean < -0.6
    assert skill.windows == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"moved": 0.0},
        {"forecast": 0.0},
        {"moved": math.inf},
        {"dot": math.nan},
        {"chance": math.inf},
        {"chance": math.nan},
    ],
    ids=str,
)
def test_a_window_that_says_nothing_is_skipped(changes):
    skill = read(window(0.4))
    assert add_window(skill, window(0.5)._replace(**changes)) == skill


def test_a_window_is_pooled_over_its_tensors():
    moved, forecasts = np.array([[6.0, 2.0], [4.0, 4.0]]), np.array([[1.0, 1.0], [2.0, 0.0]])
    columns = np.stack([moved, forecasts], 1)
    gram = columns @ columns.transpose(0, 2, 1)
    pooled = pool(gram, np.array([2.0, 6.0]), np.array([3.0, 4.0]), 2, 9.0)
    dot, square = (moved * forecasts).sum() / 2, (moved**2).sum() / 4
    assert pooled == pytest.approx((dot, square, (forecasts**2).sum(), 7.0, 2.0, 9.0))


STEPS = 20
DRIFTS = np.random.default_rng(0).normal(size=(4, 6))


def grams(lengths):
    """Windows in which each tensor has moved by a multiple of its drift."""
    moved = STEPS * np.asarray(lengths)[:, None] * DRIFTS
    columns = np.stack([moved, DRIFTS, DRIFTS], 1)
    return columns @ columns.transpose(0, 2, 1)


def fitted(*windows, ridge=0.0, memory=0.8):
    sums = np.zeros((len(DRIFTS), 2))
    for lengths in windows:
        sums = add_squares(sums, grams(lengths), STEPS, memory)
    return fit(sums, ridge)


OWN = [0.2, 0.4, 0.6, 0.8]


@pytest.mark.parametrize("ridge", [0.0, 0.5, 1e9])
def test_the_ridge_leads_from_own_lengths_to_a_shared_one(ridge):
    squares = (DRIFTS**2).sum(1)
    shared = squares @ OWN / squares.sum()
    wanted = (np.array(OWN) + ridge * shared) / (1 + ridge)
    np.testing.assert_allclose(fitted(OWN, OWN, ridge=ridge), wanted, rtol=1e-5)


def test_no_length_is_above_the_drift_and_what_did_not_move_has_none():
    np.testing.assert_allclose(fitted([3.0, -3.0, 0.0, 0.5]), [1.0, -1.0, 0.0, 0.5], atol=1e-12)
    np.testing.assert_array_equal(fit(np.zeros((4, 2)), 0.3), np.zeros(4))


def test_old_windows_count_less_in_a_fit():
    wanted = np.full(4, (0.5 * 0.2 + 0.8) / 1.5)
    np.testing.assert_allclose(fitted([0.2] * 4, [0.8] * 4, memory=0.5), wanted, rtol=1e-6)


@pytest.mark.parametrize("factor", [0.0, math.nan, math.inf])
def test_a_window_without_finite_drifts_is_not_fitted(factor):
    sums = add_squares(np.zeros((4, 2)), grams(OWN), STEPS, 0.8)
    with np.errstate(invalid="ignore"):
        after = add_squares(sums, factor * grams(OWN), STEPS, 0.8)
    np.testing.assert_array_equal(after, sums)
