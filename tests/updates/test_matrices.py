"""Orthogonal factors and levelled rows of stacks of matrices, against singular values."""

import math

import numpy as np
import pytest
import torch
from naive import orthogonal_factor

from hybrid_predict.rules.polynomials import ROW_MEMORY
from hybrid_predict.torch.matrices import flatten, orthogonal

SHAPES = [(1, 6), (6, 1), (5, 5), (3, 9), (9, 3), (4, 2, 3, 3)]


def flattened(source, iterations=3, block=None):
    source = torch.as_tensor(source).to(torch.promote_types(torch.float32, source.dtype))
    rows = [torch.zeros(source.shape[0] if source.dim() else 1)]
    return flatten([source.clone()], iterations, rows, block)[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_flattened_spectrum_goes_down_with_unit_length_and_level_rows(shape):
    source = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    flat = flattened(source)
    assert flat.shape == shape
    assert float(flat.norm()) == pytest.approx(1.0, rel=1e-5)
    assert float((flat * source).sum()) < 0
    lengths = flat.reshape(shape[0], -1).norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand_as(lengths), rtol=1e-4, atol=0)


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
def test_singular_values_are_where_the_polynomials_send_them(
    shape, spectrum, iterations, scale, block
):
    source = steep(*shape, spectrum)
    stack = torch.tensor(scale * source, dtype=torch.float32)[None]
    factor = orthogonal(stack, iterations, block)[0]
    wanted = orthogonal_factor(source, iterations, block)
    np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e-3)


def test_matrices_of_several_shapes_and_types_are_treated_as_each_alone():
    generator = torch.Generator().manual_seed(1)
    shapes = [(4, 3), (5,), (3, 2, 2, 2), (4, 3), (1, 6)]
    sources = [torch.randn(shape, generator=generator) for shape in shapes]
    sources[3] = sources[3].double()
    rows = [torch.zeros(shape[0], dtype=x.dtype) for shape, x in zip(shapes, sources, strict=True)]
    together = flatten([x.clone() for x in sources], 3, rows)
    for x, source, moments in zip(together, sources, rows, strict=True):
        assert x.dtype == source.dtype
        torch.testing.assert_close(x, flattened(source), rtol=1e-4, atol=1e-6)
        if source.dim() > 1:
            factor = orthogonal(source.reshape(1, len(source), -1), 3)[0]
            wanted = (1 - ROW_MEMORY) * factor.square().mean(1)
            torch.testing.assert_close(moments, wanted, rtol=1e-4, atol=1e-7)


def test_roots_multiply_a_matrix_from_both_sides():
    generator = torch.Generator().manual_seed(2)
    source, left, right = (torch.randn(n, generator=generator) for n in [(4, 3), (4, 4), (3, 3)])
    none = torch.zeros(0)
    for a, b, wanted in [(left, right, left @ source @ right), (none, right, source @ right)]:
        found = flatten([source.clone()], 3, [torch.zeros(4)], None, ([a.flatten()], [b.flatten()]))
        torch.testing.assert_close(found[0], flattened(wanted), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_nothing_depends_on_torch_s_default_dtype(dtype):
    source, before = steep(9, 12, "steep"), torch.get_default_dtype()
    source = torch.tensor(source, dtype=torch.float32)
    wanted = flatten([source.clone()], 3, [torch.zeros(9)])[0]
    rows = [torch.zeros(9)]
    torch.set_default_dtype(dtype)
    try:
        found = flatten([source.clone()], 3, rows)[0]
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("block", [None, 2, 1])
def test_one_tiny_gradient_does_not_freeze_a_row(block):
    rows, generator = [torch.zeros(8)], torch.Generator().manual_seed(0)
    for step in range(30):
        gradient = torch.randn(8, 16, generator=generator)
        gradient[0] *= 1e-30 if step == 3 else 1.0
        (flat,) = flatten([gradient], 3, rows, block)
    lengths = torch.linalg.vector_norm(flat, dim=1)
    assert lengths[0] > 0.5 * lengths.median()
    assert math.isfinite(float(lengths.sum()))
