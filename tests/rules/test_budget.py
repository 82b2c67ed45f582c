"""How many rows corrected updates treat together, and what that takes."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict import HybridConfig, SpectralUpdate
from hybrid_predict.rules.budget import (
    SMALLEST_STEP,
    as_matrix,
    budget,
    describe_block,
    describe_excess,
    flatten_operations,
    largest_block,
    remedies,
    split_rows,
    weak,
)
from hybrid_predict.rules.polynomials import POLYNOMIALS
from hybrid_predict.torch.matrices import Moments, flatten

WIDTH = 512


@pytest.mark.parametrize(
    ("rows_per_unit", "is_weak", "is_whole"),
    [(1.29, True, False), (1.31, False, False), (29.9, False, False), (30.1, False, True)],
)
def test_square_layers_are_corrected_by_the_rows_of_a_batch(rows_per_unit, is_weak, is_whole):
    weight = torch.empty(WIDTH, WIDTH, device="meta")
    step = 6 * weight.numel() * rows_per_unit * WIDTH  # forward and backward of a linear layer
    operations = partial(SpectralUpdate().operations, [weight])
    block, _ = largest_block(operations, budget(step, HybridConfig().max_overhead))
    assert (weak([weight.shape], block), block is None) == (is_weak, is_whole)


@pytest.mark.parametrize(
    ("rows", "block", "wanted"),
    [(10, None, (1, 10)), (10, 16, (1, 10)), (10, 4, (3, 4)), (10, 1, (10, 1)), (1, 1, (1, 1))],
)
def test_rows_are_treated_in_blocks_of_nearly_equal_size(rows, block, wanted):
    assert split_rows(rows, block) == wanted


@pytest.mark.parametrize("block", [None, 16, 5, 1])
@pytest.mark.parametrize("count", POLYNOMIALS)
@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24), (1, 9), (20, 5, 3, 3), (7,)])
def test_operations_are_those_that_torch_counts(shape, count, block):
    matrices, (height, width) = [torch.randn(shape) for _ in range(2)], as_matrix(shape)
    moments = Moments([torch.ones(height + width)] * 2, [torch.ones(height)] * 2)
    with FlopCounterMode(display=False) as mode:
        flatten(matrices, count, moments, block)
    counted = flatten_operations([shape] * 2, count, block, gram=True)
    assert counted == mode.get_total_flops()


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


@pytest.mark.parametrize(
    ("block", "further", "words"),
    [
        (1, "", "treat rows one by one, which max_overhead=0.1 allows"),
        (16, "", "treat 16 rows at a time, which max_overhead=0.1 allows"),
        (2, "x=3", "max_overhead=0.1 allows; corrections are weak; for strong ones set x=3"),
    ],
)
def test_a_block_of_rows_is_described_with_its_cause(block, further, words):
    text = describe_block(block, 0.1, [], further)
    assert text.startswith("corrected updates treat ") and text.endswith(words)


def test_an_excess_names_its_share_and_the_limit():
    text = describe_excess("40 %", 0.1)
    assert text == (
        "corrected updates take 40 % of a full step's operations, more than max_overhead=0.1 allows"
    )


def test_the_budget_of_a_small_step_is_that_of_a_larger_one():
    assert budget(1.0, 0.1) == budget(SMALLEST_STEP, 0.1) == 0.1 * SMALLEST_STEP
