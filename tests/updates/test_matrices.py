"""Orthogonal factors and roots of stacks of matrices against singular values and eigenvalues."""

import math

import numpy as np
import pytest
import torch
from naive import below_one, correlation, covariance_of, inverse_root, orthogonal_factor

from hybrid_predict.tensors import matrices
from hybrid_predict.tensors.matrices import (
    Moments,
    covariances_of,
    flatten,
    observe,
    orthogonal,
    pack,
    roots_of,
)
from hybrid_predict.tensors.polynomials import POLYNOMIALS, ROOT_FLOOR
from hybrid_predict.tensors.shapes import as_matrix


def moments(shape, rooted=False, kind=torch.float32):
    rows, columns = as_matrix(shape)
    side = min(rows, columns) if rooted else 0
    root = torch.zeros(side * (side + 1), dtype=kind)
    return Moments([torch.zeros(rows + columns)], [torch.zeros(rows)], [root])


def flattened(source, known):
    source = torch.as_tensor(source).to(torch.promote_types(torch.float32, source.dtype))
    observe(known.roots, [source], 0.9)
    return flatten([source.clone()], known)[0]


def matrix(rows, columns, spectrum):
    generator = np.random.default_rng(5)
    left, right = (np.linalg.qr(generator.normal(size=(n, n)))[0] for n in (rows, columns))
    size = min(rows, columns)
    values = {"steep": 10.0 ** -np.arange(size), "rank 1": np.eye(size)[0], "flat": np.ones(size)}
    return (left[:, :size] * values[spectrum]) @ right[:size]


ROOTED = pytest.mark.parametrize("rooted", [False, True], ids=["scales alone", "with a root"])
SHAPES = pytest.mark.parametrize("shape", [(6, 20), (9, 6), (5, 1), (1, 1)])
SPECTRA = pytest.mark.parametrize("spectrum", ["steep", "rank 1", "flat"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SCALED = pytest.mark.parametrize(
    ("scale", "dtype"), [(1.0, torch.float64), (1e-30, torch.float32), (1e25, torch.float32)]
)


@pytest.mark.parametrize(
    ("shape", "kind", "rooted"),
    [
        ((3, 4), torch.float32, False),
        ((5, 1), torch.bfloat16, True),
        ((2, 2, 3, 3), torch.float32, True),
    ],
)
def test_zero_stays_zero(shape, kind, rooted):
    zeros = torch.zeros(shape)
    known = moments(shape, rooted, kind)
    assert torch.equal(flattened(zeros, known), zeros)
    assert all(x.isfinite().all() for (x,) in known)


@SHAPES
@SPECTRA
@SCALED
def test_singular_values_are_where_halley_s_step_sends_them(shape, spectrum, scale, dtype):
    source = matrix(*shape, spectrum)
    factor = orthogonal(torch.tensor(scale * source, dtype=dtype)[None])[0]
    # The step magnifies what the Gram matrix has lost of small singular values.
    lost = 1e3 * torch.finfo(dtype).eps
    np.testing.assert_allclose(factor, orthogonal_factor(source), rtol=0, atol=lost)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
@DTYPES
def test_factors_are_those_of_the_product_with_the_root_of_the_shorter_side(shape, dtype):
    source, side = matrix(*shape, "steep"), min(shape)
    root = matrix(side, side, "flat") + 2.0 * np.eye(side)
    root = root + root.T
    packed = pack(torch.zeros(1, side, side, dtype=dtype), torch.tensor(root, dtype=dtype)[None])
    factor = orthogonal(torch.tensor(source, dtype=dtype)[None], list(packed))[0]
    wanted = orthogonal_factor(root @ source if side == shape[0] else source @ root)
    np.testing.assert_allclose(factor, wanted, rtol=0, atol=1e3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("count", POLYNOMIALS)
@DTYPES
def test_without_inverses_singular_values_are_where_the_polynomials_send_them(count, dtype):
    source = matrix(6, 20, "steep")
    left, values, right = np.linalg.svd(source, full_matrices=False)
    values = below_one(values)
    x = torch.tensor((left * values) @ right, dtype=dtype)[None]
    factor = matrices._iterated(x, torch.bmm(x, x.mT), count)[0]
    for a, b, c in POLYNOMIALS[count]:
        values = a * values + b * values**3 + c * values**5
    lost = 1e3 * torch.finfo(dtype).eps
    np.testing.assert_allclose(factor, (left * values) @ right, rtol=0, atol=lost)


@DTYPES
def test_without_inverses_roots_multiply_singular_values_as_the_polynomials_do(dtype):
    values, basis = below_one(10.0 ** -np.arange(6.0)), np.linalg.qr(matrix(6, 6, "flat"))[0]
    square = torch.tensor((basis * values) @ basis.T, dtype=dtype)[None]
    found = matrices._by_products(square)[0]
    factors, squares = np.ones_like(values), values
    for a, b, c in POLYNOMIALS[3]:
        step = a + b * squares + c * squares**2
        factors, squares = step * factors, squares * step**2
    lost = 1e5 * torch.finfo(dtype).eps
    np.testing.assert_allclose(found, (basis * factors) @ basis.T, rtol=0, atol=lost)


def test_nothing_depends_on_torch_s_default_dtype():
    dtype, rooted = torch.bfloat16, True
    source, before = torch.tensor(matrix(9, 12, "steep"), dtype=torch.float32), []
    known = [moments(source.shape, rooted) for _ in range(2)]
    wanted, default = flattened(source, known[0]), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        before.append(flattened(source, known[1]))
    finally:
        torch.set_default_dtype(default)
    assert torch.equal(before[0], wanted)
    assert all(torch.equal(x, y) for (x,), (y,) in zip(*known, strict=True))


@ROOTED
def test_matrices_of_one_shape_are_treated_alike_alone_and_together(rooted):
    shape, generator = (5, 8), torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator) for _ in range(3)]
    alone = [flattened(x, moments(shape, rooted)) for x in given]
    known = Moments(*(list(map(torch.clone, each * 3)) for each in moments(shape, rooted)))
    observe(known.roots, given, 0.9)
    together = flatten([x.clone() for x in given], known)
    for x, y in zip(alone, together, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


@ROOTED
def test_one_tiny_gradient_does_not_freeze_a_row(rooted):
    known, generator = moments((8, 16), rooted), torch.Generator().manual_seed(0)
    for step in range(30):
        gradient = torch.randn(8, 16, generator=generator)
        gradient[0] *= 1e-30 if step == 3 else 1.0
        flat = flattened(gradient, known)
    lengths = torch.linalg.vector_norm(flat, dim=1)
    assert lengths[0] > 0.5 * lengths.median()
    assert math.isfinite(float(lengths.sum()))


@pytest.mark.parametrize("axis", [0, 1])
def test_much_energy_gives_less_weight_within_a_range(axis):
    generator = torch.Generator().manual_seed(0)
    known, lengths = moments((16, 16)), []
    for _ in range(60):
        gradient = torch.randn(16, 16, generator=generator)
        gradient.select(axis, 0).mul_(10.0)
        lengths.append(torch.linalg.vector_norm(flattened(gradient, known), dim=1 - axis))
    mean = torch.stack(lengths[20:]).mean(0)
    # Rows are levelled; columns keep the spread of the orthogonal factor.
    ratio = float(mean[0] / mean[1:].mean())
    assert ratio == pytest.approx((1 / 4) ** 0.5, abs=0.15)


@pytest.mark.parametrize(("side", "dtype"), [(1, torch.float64), (7, torch.bfloat16)])
def test_both_symmetric_matrices_come_back_from_the_memory_of_one_and_a_diagonal(side, dtype):
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(2, 3, side, side, generator=generator).to(dtype)
    left, right = pair + pair.mT
    packed = pack(left, right)
    assert packed.shape == (3, side * (side + 1)) and packed.dtype == dtype
    assert torch.equal(covariances_of(packed), left)
    assert torch.equal(roots_of(packed), right)


@SHAPES
@SPECTRA
@SCALED
def test_covariances_and_roots_are_those_of_the_eigenvalues(shape, spectrum, scale, dtype):
    side, source = min(shape), matrix(*shape, spectrum)
    packed, exact = torch.zeros(side * (side + 1), dtype=dtype), np.zeros((side, side))
    generator = np.random.default_rng(0)
    for _ in range(4):
        gradient = source * generator.normal(size=shape)
        observe([packed], [torch.tensor(scale * gradient, dtype=dtype)], 0.9)
        exact = 0.9 * exact + 0.1 * covariance_of(gradient)
    (covariance,) = covariances_of(packed)
    (root,) = roots_of(packed)
    eps, wanted = torch.finfo(dtype).eps, inverse_root(exact)
    np.testing.assert_allclose(covariance, exact, rtol=0, atol=20 * eps)
    # The root has a condition number of the step's constant.
    np.testing.assert_allclose(root, wanted, rtol=0, atol=3e4 * eps * np.abs(wanted).max())


@pytest.mark.parametrize("shape", [(64, 4), (48, 64)])
def test_roots_of_covariances_in_16_bits_are_near_the_exact_ones(shape):
    generator, side = torch.Generator().manual_seed(0), min(shape)
    packed = torch.zeros(side * (side + 1), dtype=torch.bfloat16)
    exact = np.zeros((side, side))
    for _ in range(60):
        gradient = torch.randn(shape, generator=generator)
        observe([packed], [gradient], 0.9)
        exact = 0.9 * exact + 0.1 * covariance_of(gradient.double().numpy())
    root = roots_of(packed)[0].double().numpy()
    assert correlation(root, inverse_root(exact, ROOT_FLOOR)) > 0.97


def test_a_tensor_without_a_covariance_has_none_afterwards():
    packed = torch.zeros(0)
    observe([packed], [torch.ones(3, 3)], 0.9)
    assert packed.numel() == 0
