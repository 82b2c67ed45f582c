"""Orthogonal factors of stacks of matrices against singular values, and moments of rows."""

import math

import numpy as np
import pytest
import torch
from naive import orthogonal_factor

from hybrid_predict.rules.budget import as_matrix
from hybrid_predict.torch.matrices import Moments, flatten, orthogonal


def moments(shape):
    rows, columns = as_matrix(shape)
    return Moments([torch.zeros(rows + columns)], [torch.zeros(rows)])


def flattened(source, iterations=3, block=None):
    source = torch.as_tensor(source).to(torch.promote_types(torch.float32, source.dtype))
    return flatten([source.clone()], iterations, moments(source.shape), block)[0]


@pytest.mark.parametrize("shape", [(), (4,), (3, 3), (2, 2, 3, 3)])
@pytest.mark.parametrize("block", [None, 2, 1])
def test_zero_stays_zero(shape, block):
    assert torch.equal(flattened(torch.zeros(shape), 3, block), torch.zeros(shape))


def steep(rows, columns, spectrum):
    generator = np.random.default_rng(5)
    left, right = (np.linalg.qr(generator.normal(size=(n, n)))[0] for n in (rows, columns))
    size = min(rows, columns)
    values = {"steep": 10.0 ** -np.arange(size), "rank 1": np.eye(size)[0], "flat": np.ones(size)}
    return (left[:, :size] * values[spectrum]) @ right[:size]


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (9, 12)])
@pytest.mark.parametrize("spectrum", ["steep", "rank 1", "flat"])
@pytest.mark.parametrize("block", [None, 4, 1])
@pytest.mark.parametrize(("iterations", "scale"), [(3, 1.0), (3, 1e-30), (3, 1e25), (5, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_values_are_where_the_polynomials_send_them(
    shape, spectrum, iterations, scale, block, dtype
):
    source = steep(*shape, spectrum)
    stack = torch.tensor(scale * source, dtype=dtype)[None]
    factor = orthogonal(stack, iterations, block)[0]
    wanted = orthogonal_factor(source, iterations, block)
    # Each polynomial magnifies what the Gram matrix has lost of small singular values.
    lost = torch.finfo(dtype).eps * (1e3 if iterations == 3 else 2e4)
    np.testing.assert_allclose(factor, wanted, rtol=0, atol=lost)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_nothing_depends_on_torch_s_default_dtype(dtype):
    source, before = steep(9, 12, "steep"), torch.get_default_dtype()
    source = torch.tensor(source, dtype=torch.float32)
    wanted = flatten([source.clone()], 3, moments(source.shape))[0]
    known = moments(source.shape)
    torch.set_default_dtype(dtype)
    try:
        found = flatten([source.clone()], 3, known)[0]
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("block", [None, 2, 1])
def test_one_tiny_gradient_does_not_freeze_a_row(block):
    known, generator = moments((8, 16)), torch.Generator().manual_seed(0)
    for step in range(30):
        gradient = torch.randn(8, 16, generator=generator)
        gradient[0] *= 1e-30 if step == 3 else 1.0
        (flat,) = flatten([gradient], 3, known, block)
    lengths = torch.linalg.vector_norm(flat, dim=1)
    assert lengths[0] > 0.5 * lengths.median()
    assert math.isfinite(float(lengths.sum()))


@pytest.mark.parametrize("axis", [0, 1])
def test_much_energy_gives_less_weight_within_a_range(axis):
    generator = torch.Generator().manual_seed(0)
    known, lengths = moments((16, 16)), []
    for _ in range(60):
        gradient = torch.randn(16, 16, generator=generator)
        gradient.select(axis, 0).mul_(100.0)
        (flat,) = flatten([gradient], 5, known)
        lengths.append(torch.linalg.vector_norm(flat, dim=1 - axis))
    mean = torch.stack(lengths[20:]).mean(0)
    # Rows are levelled; columns keep the spread of the orthogonal factor.
    ratio = float(mean[0] / mean[1:].mean())
    assert ratio == pytest.approx((1 / 4) ** 0.5, abs=0.15)
