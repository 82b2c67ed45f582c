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
    flatten_operations,
    largest_block,
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


def test_the_budget_of_a_small_step_is_that_of_a_larger_one():
    assert budget(1.0, 0.1) == budget(SMALLEST_STEP, 0.1) == 0.1 * SMALLEST_STEP
