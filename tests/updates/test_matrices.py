"""Every kernel of every backend against the NumPy reference."""

import math

import numpy as np
import pytest
import torch
from cases import BACKEND_CASES, HISTORY_CASES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from hybrid_predict.tensors import BACKENDS
from hybrid_predict.testing.backends import KERNELS, NUMPY, TORCH, check_kernel

SHAPES = st.lists(npst.array_shapes(min_dims=0, max_dims=4, max_side=5), max_size=4)
COMBINATIONS = [(name, dtype) for name, case in HISTORY_CASES.items() for dtype in case.dtypes]


def test_table_covers_every_backend():
    assert BACKEND_CASES.keys() == BACKENDS.keys()
    assert {name: type(case.backend) for name, case in BACKEND_CASES.items()} == BACKENDS


def arrays(shapes, seed, scale=1.0):
    generator = np.random.default_rng(seed)
    return [scale * generator.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "dtype"), COMBINATIONS)
@given(shapes=SHAPES, seed=st.integers(0, 2**16))
def test_kernel_agrees_with_the_reference(name, dtype, kernel, shapes, seed):
    check_kernel(HISTORY_CASES[name], kernel, dtype, shapes, seed)


@pytest.mark.parametrize("name", BACKEND_CASES)
@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (5, 5), (3, 9), (9, 3), (4, 2, 3, 3)])
def test_a_flattened_spectrum_goes_down_with_unit_length_and_level_singular_values(name, shape):
    case = BACKEND_CASES[name]
    (source,) = arrays([shape], 3)
    (flat,) = flattened(case, source)
    assert flat.shape == shape
    assert np.linalg.norm(flat) == pytest.approx(1.0, rel=1e-5)
    values = np.linalg.svd(flat.reshape(shape[0], -1), compute_uv=False)
    spread = np.linalg.svd(source.reshape(shape[0], -1), compute_uv=False)
    assert values.max() / values.min() <= 1.3 / 0.7
    assert np.sum(flat * source) < 0
    if len(spread) > 2:
        assert values.max() / values.min() < spread.max() / spread.min()


@pytest.mark.parametrize("name", BACKEND_CASES)
@pytest.mark.parametrize("shape", [(), (4,), (3, 3), (2, 2, 3, 3)])
def test_zero_arrays_stay_zero_when_flattened(name, shape):
    case = BACKEND_CASES[name]
    np.testing.assert_array_equal(flattened(case, np.zeros(shape))[0], np.zeros(shape))


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (9, 3, 2, 2)])
@pytest.mark.parametrize("spectrum", ["steep", "rank 1"])
@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize(("iterations", "scale"), [(3, 1.0), (3, 1e-30), (3, 1e25), (5, 1.0)])
def test_spectra_of_low_rank_are_flattened_as_the_reference_does(
    shape, spectrum, iterations, scale, block
):
    rows, columns = shape[0], math.prod(shape[1:])
    generator = np.random.default_rng(5)
    left, right = (np.linalg.qr(generator.normal(size=(n, n)))[0] for n in (rows, columns))
    size = min(rows, columns)
    values = 10.0 ** -np.arange(size) if spectrum == "steep" else np.eye(size)[0]
    source = scale * ((left[:, :size] * values) @ right[:size]).reshape(shape)
    found, wanted = (flattened(case, source, iterations, block)[0] for case in (TORCH, NUMPY))
    assert np.abs(found - wanted).max() < 1e-3


def flattened(case, source, iterations=3, block=None):
    """One array with its spectrum flattened, as NumPy array."""
    arrays = [case.load(source, "float32")]
    found, _ = case.backend.flatten_spectrum(arrays, arrays, [0.5], iterations, None, block)
    return [case.dump(x) for x in found]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", BACKEND_CASES)
def test_every_kernel_takes_an_empty_list(name, kernel):
    case = BACKEND_CASES[name]
    found = KERNELS[kernel](case.backend, [], [], [])
    assert sum(case.dump(x).size for x in found) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_levelling_does_not_depend_on_torch_s_default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        check_kernel(TORCH, "flatten_spectrum, levelled", "float32", ((4, 3), (5,)), seed=0)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", BACKEND_CASES)
@pytest.mark.parametrize(
    ("kernel", "wanted"), [("zeros", 0), ("norms", 2.0**17), ("dots", 2.0**34)]
)
def test_half_precision_is_reduced_and_averaged_in_32_bits(name, kernel, wanted):
    case = BACKEND_CASES[name]
    # Neither this norm nor this product fits into 16-bit floats.
    large = [case.load(np.full((4, 4), 2.0**15), "float16")]
    found = KERNELS[kernel](case.backend, large, large, [])[0]
    assert str(found.dtype)[-2:] in ("32", "64")
    assert np.all(case.dump(found) == wanted)
