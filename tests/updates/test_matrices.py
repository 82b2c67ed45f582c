"""Orthogonal factors and roots of stacks of matrices against singular values and eigenvalues."""

import numpy as np
import pytest
import torch
from naive import below_one, correlation, covariance_of, inverse_root, orthogonal_factor

from hybrid_predict.tensors import matrices
from hybrid_predict.tensors.matrices import covariances_of, observe, orthogonal, roots_of
from hybrid_predict.tensors.polynomials import POLYNOMIALS, ROOT_FLOOR


def matrix(rows, columns, spectrum):
    generator = np.random.default_rng(5)
    left, right = (np.linalg.qr(generator.normal(size=(n, n)))[0] for n in (rows, columns))
    size = min(rows, columns)
    values = {"steep": 10.0 ** -np.arange(size), "rank 1": np.eye(size)[0], "flat": np.ones(size)}
    return (left[:, :size] * values[spectrum]) @ right[:size]


SHAPES = pytest.mark.parametrize("shape", [(6, 20), (9, 6), (5, 1), (1, 1)])
SPECTRA = pytest.mark.parametrize("spectrum", ["steep", "rank 1", "flat"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
SCALED = pytest.mark.parametrize(
    ("scale", "dtype"), [(1.0, torch.float64), (1e-30, torch.float32), (1e25, torch.float32)]
)


@SHAPES
@SPECTRA
@DTYPES
def test_singular_values_are_where_halley_s_step_sends_them(shape, spectrum, dtype):
    source = matrix(*shape, spectrum)
    factor = orthogonal(torch.tensor(source, dtype=dtype)[None], torch.empty(0))[0]
    # The step magnifies what the Gram matrix has lost of small singular values.
    lost = 1e3 * torch.finfo(dtype).eps
    np.testing.assert_allclose(factor, orthogonal_factor(source), rtol=0, atol=lost)


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
