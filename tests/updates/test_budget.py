"""How many rows of a batch corrected updates need, as the README says."""

from functools import partial

import pytest
import torch

from hybrid_predict import HybridConfig, SpectralUpdate
from hybrid_predict.rules.budget import budget, largest_block, weak
from hybrid_predict.tensors import TorchBackend

WIDTH = 512


@pytest.mark.parametrize(
    ("rows_per_unit", "is_weak", "is_whole"),
    [(1.29, True, False), (1.31, False, False), (29.9, False, False), (30.1, False, True)],
)
def test_square_layers_are_corrected_by_the_rows_of_a_batch(rows_per_unit, is_weak, is_whole):
    weight = torch.empty(WIDTH, WIDTH, device="meta")
    step = 6 * weight.numel() * rows_per_unit * WIDTH  # forward and backward of a linear layer
    operations = partial(SpectralUpdate().operations, [weight], TorchBackend())
    block, _ = largest_block(operations, budget(step, HybridConfig().max_overhead))
    assert (weak([weight.shape], block), block is None) == (is_weak, is_whole)
