"""How often corrected updates are made, and what they take."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import SpectralUpdate
from hybrid_predict.config import HybridConfig
from hybrid_predict.policy.budget import (
    LONGEST_PERIOD,
    SMALLEST_STEP,
    budget,
    deal,
    shortest_period,
)

WIDTH = 512


@pytest.mark.parametrize(("rows_per_unit", "wanted"), [(0.6, None), (0.7, 6), (2.6, 2), (2.7, 1)])
def test_square_layers_are_corrected_as_often_as_the_rows_of_a_batch_allow(rows_per_unit, wanted):
    weight = torch.empty(WIDTH, WIDTH)
    step = 6 * weight.numel() * rows_per_unit * WIDTH  # forward and backward of a linear layer
    allowed = budget(step, HybridConfig().max_overhead)
    period = shortest_period(lambda p: SpectralUpdate().operations([weight], p) / p, allowed)
    assert period == wanted


@given(st.floats(1.0, 1e6), st.floats(0.0, 1e6))
def test_the_period_is_the_shortest_one_within_the_budget(work, allowed):
    period = shortest_period(lambda p: work / p, allowed)
    if period is None:
        assert work / LONGEST_PERIOD > allowed
    else:
        assert 1 <= period <= LONGEST_PERIOD and work / period <= allowed
        assert period == 1 or work / (period - 1) > allowed


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, LONGEST_PERIOD))
def test_full_steps_of_a_period_have_about_the_same_to_correct(work, period):
    found = deal(work, period)
    assert len(found) == len(work) and set(found) <= set(range(period))
    busy = [0] * period
    for amount, turn in zip(work, found, strict=True):
        busy[turn] += amount
    assert max(busy) - min(busy) <= max(work, default=0)


def test_the_budget_of_a_small_step_is_that_of_a_larger_one():
    assert budget(1.0, 0.1) == budget(SMALLEST_STEP, 0.1) == 0.1 * SMALLEST_STEP
