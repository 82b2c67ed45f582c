"""How often corrected updates are made, and what they take."""

from functools import partial

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
    describe_period,
    remedies,
    shortest_period,
)
from hybrid_predict.tensors.shapes import as_matrix, direction_operations

WIDTH = 512


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((), (1, 1)), ((7,), (1, 7)), ((3, 5), (3, 5)), ((4, 2, 3, 3), (4, 18)), ((1, 9), (1, 9))],
)
def test_arrays_are_read_as_matrices_by_their_first_dimension(shape, wanted):
    assert as_matrix(shape) == wanted


@pytest.mark.parametrize("products", [False, True])
def test_vectors_take_no_operations_and_both_orientations_the_same(products):
    count = partial(direction_operations, longest=8, every=5, products=products)
    assert count([(7,), ()]) == 0
    assert count([(4, 60)]) == count([(60, 4)]) == count([(4, 3, 4, 5)]) > 0
    assert count([(4, 60), (9, 9)]) == count([(4, 60)]) + count([(9, 9)])


def test_each_product_and_inverse_is_counted():
    """`tests/updates/test_spectral.py` compares these with what torch counts."""
    product, cube = 2 * 4**2 * 60, 4**3
    count = partial(direction_operations, [(4, 60)], every=5)
    assert count(longest=3, products=False) == 2 * product + cube
    assert count(longest=4, products=False) == 3 * product + cube + round((product + 3 * cube) / 5)
    assert count(longest=3, products=True) == 3 * (2 * product + 2 * cube)


@pytest.mark.parametrize("longest", [0, WIDTH])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_rarer_corrections_take_less(longest, device):
    update, like = SpectralUpdate(longest=longest), [torch.empty(WIDTH, WIDTH, device=device)]
    taken = [update.operations(like, p) / p for p in range(1, LONGEST_PERIOD + 1)]
    assert taken == sorted(taken, reverse=True) and len(set(taken)) == LONGEST_PERIOD


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


def test_no_work_needs_no_budget():
    assert shortest_period(lambda p: 0.0, 0.0) == 1


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, LONGEST_PERIOD))
def test_full_steps_of_a_period_have_about_the_same_to_correct(work, period):
    found = deal(work, period)
    assert len(found) == len(work) and set(found) <= set(range(period))
    busy = [0] * period
    for amount, turn in zip(work, found, strict=True):
        busy[turn] += amount
    assert max(busy) - min(busy) <= max(work, default=0)


@given(st.integers(0, 60), st.integers(1, LONGEST_PERIOD))
def test_equal_matrices_are_dealt_evenly(count, period):
    found = deal([5] * count, period)
    dealt = [found.count(turn) for turn in range(period)]
    assert max(dealt) - min(dealt) <= 1


@pytest.mark.parametrize(
    ("needed", "limit", "samples", "words"),
    [
        (5e8, 0.1, 8, "batches of at least 40 samples (now 8), or max_overhead=0.5"),
        (5.01e8, 0.1, 8, "batches of at least 41 samples (now 8), or max_overhead=0.51"),
        (5e8, 0.1, None, "batches 5 times as large, or max_overhead=0.5"),
        (5e8, 0.0, 8, "max_overhead=0.5"),
        (3.21e9, 0.1, 2000, "batches of at least 64,200 samples (now 2,000), or max_overhead=3.3"),
    ],
)
def test_remedies_of_a_small_budget_are_what_to_type(needed, limit, samples, words):
    assert remedies(needed, 1e9, limit, samples) == words


def test_a_period_is_described_with_its_cause():
    assert describe_period(3, 0.1) == (
        "each matrix is corrected in one of 3 full steps, which max_overhead=0.1 allows"
    )


def test_the_budget_of_a_small_step_is_that_of_a_larger_one():
    assert budget(1.0, 0.1) == budget(SMALLEST_STEP, 0.1) == 0.1 * SMALLEST_STEP
