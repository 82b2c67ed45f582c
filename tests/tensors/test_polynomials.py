"""The polynomials are the best ones for their intervals, and their operations are counted right."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict.rules.polynomials import LEAST, POLYNOMIALS, split_rows
from hybrid_predict.tensors import TorchBackend


def best(least, most):
    """The odd quintic that is nearest to one on an interval, and its largest error."""
    x = np.linspace(least, most, 4001)
    powers, ones = np.stack([x, x**3, x**5], 1), np.ones((len(x), 1))
    found = linprog(
        [0, 0, 0, 1],
        A_ub=np.block([[powers, -ones], [-powers, -ones]]),
        b_ub=np.concatenate([np.ones(len(x)), -np.ones(len(x))]),
        bounds=[(None, None)] * 3 + [(0, None)],
        method="highs",
    )
    return found.x[:3], found.x[3]


@pytest.mark.parametrize("count", POLYNOMIALS)
def test_every_polynomial_is_the_best_on_what_the_ones_before_it_leave(count):
    least, most = LEAST[count], 1.0
    for coefficients in POLYNOMIALS[count]:
        wanted, error = best(least, most)
        np.testing.assert_allclose(coefficients, wanted, atol=1e-4)
        least, most = 1 - error, 1 + error


@pytest.mark.parametrize("count", POLYNOMIALS)
def test_singular_values_that_are_not_small_end_between_0_7_and_1_3(count):
    values = np.linspace(LEAST[count], 1.0, 1000)
    for a, b, c in POLYNOMIALS[count]:
        values = a * values + b * values**3 + c * values**5
    assert 0.7 < values.min() < values.max() < 1.3


@pytest.mark.parametrize(
    ("rows", "block", "found"),
    [(10, None, (1, 10)), (10, 16, (1, 10)), (10, 4, (3, 4)), (10, 1, (10, 1)), (1, 1, (1, 1))],
)
def test_rows_are_treated_in_equal_parts(rows, block, found):
    assert split_rows(rows, block) == found


@pytest.mark.parametrize("block", [None, 16, 5, 1])
@pytest.mark.parametrize("count", POLYNOMIALS)
@pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24), (1, 9), (20, 5, 3, 3), (7,)])
def test_operations_are_those_that_torch_counts(shape, count, block):
    backend, gradients = TorchBackend(), [torch.randn(shape), torch.randn(shape)]
    with FlopCounterMode(display=False) as mode:
        backend.flatten_spectrum(gradients, gradients, [0.5] * 2, count, None, block)
    assert backend.flatten_operations(gradients, count, block) == mode.get_total_flops()


def test_fewer_rows_at_a_time_take_fewer_operations_down_to_none():
    like = [torch.zeros(64, 256), torch.zeros(96, 96)]
    found = [TorchBackend().flatten_operations(like, 3, b) for b in (None, 64, 32, 16, 8, 4, 1)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0


@pytest.mark.parametrize("block", [None, 2, 1])
def test_one_tiny_gradient_does_not_freeze_a_row(block):
    backend, rows = TorchBackend(), None
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        gradient = [torch.randn(8, 16, generator=generator)]
        gradient[0][0] *= 1e-30 if step == 3 else 1.0
        rows = backend.zero_rows(gradient) if rows is None else rows
        (flat,), rows = backend.flatten_spectrum(gradient, gradient, [0.5], 3, rows, block)
    lengths = torch.linalg.vector_norm(flat, dim=1)
    assert lengths[0] > 0.5 * lengths.median()
