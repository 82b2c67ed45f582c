"""Whether validations say that a run overfits."""

import math

import numpy as np
import pytest

from hybrid_predict.policy.overfitting import LEAST, Overfitting

FALLING = [1.0 - 0.01 * t for t in range(200)]
"""Training losses of a run that makes progress."""


def overfits_at(values, losses=FALLING):
    known = Overfitting()
    for at, (value, loss) in enumerate(zip(values, losses, strict=False)):
        known.add(value, loss)
        if known.found:
            return at
    return None


def test_a_smooth_rise_is_seen_soon_after_the_best():
    falling = [0.3 + 0.7 * 0.6**t for t in range(10)]
    assert overfits_at(falling) is None
    assert overfits_at(falling + [falling[-1] + 0.03 * t for t in range(1, 9)]) == 12


def test_rounded_values_are_no_overfitting_and_an_equal_mean_ends_it():
    assert overfits_at([0.9] * 20 + [0.905] + [0.9] * 5) is None
    known = Overfitting()
    for value in (1.0, 0.3, 0.3, 0.3, *(0.1 * t for t in range(4, 20))):
        known.add(value, -len(known.values))
    assert known.found
    for value in (0.3, 0.3, 0.3):
        known.add(value, -9.0)
    assert not known.found


def test_validation_that_rises_with_the_training_loss_is_no_overfitting():
    values = [1.0, 0.6, 0.4, 0.3, 0.5, 0.7, 0.9]
    assert overfits_at(values, values) is None
    assert overfits_at(values, [math.nan] * 7) is None


def test_nothing_is_found_before_there_are_validations_enough():
    rising = [0.1 * t for t in range(9)]
    assert overfits_at(rising) == LEAST - 1


def test_a_rise_that_is_small_beside_what_was_gained_does_not_count():
    assert overfits_at([10.0, 1.0, 0.5, 0.4] + [0.41 + 0.001 * t for t in range(50)]) is None


def test_values_that_are_not_finite_do_not_count():
    known = Overfitting()
    for value in (math.nan, 1.0, math.inf, 0.9):
        known.add(value, 0.0)
    assert known.values == (1.0, 0.9)


@pytest.mark.parametrize("count", [10, 30, 100])
def test_noisy_progress_is_no_overfitting(count):
    generator = np.random.default_rng(0)
    falling = np.exp(-3.0 * np.arange(count) / count)
    runs = falling + 0.05 * generator.normal(size=(200, count))
    found = sum(overfits_at(run) is not None for run in runs)
    assert found <= 6
