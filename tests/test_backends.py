"""Every kernel of every backend against the NumPy reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cases import BACKEND_CASES, RESOLUTION
from hybrid_predict.backends import BACKENDS, NumpyBackend

REFERENCE = NumpyBackend()

KERNELS = {
    "zeros": lambda b, x, y, f: b.zeros(x),
    "copy": lambda b, x, y, f: b.copy(x, y),
    "difference": lambda b, x, y, f: b.difference(x, y),
    "add_scaled": lambda b, x, y, f: b.add_scaled(x, y, f),
    "average": lambda b, x, y, f: b.average(x, y, 0.75),
    "norms": lambda b, x, y, f: b.norms(x),
    "dots": lambda b, x, y, f: b.dots(x, y),
    "flatten_spectrum": lambda b, x, y, f: b.flatten_spectrum(x, y, 5),
}

SHAPES = st.lists(npst.array_shapes(min_dims=0, max_dims=4, max_side=5), max_size=4)
COMBINATIONS = [(name, dtype) for name, case in BACKEND_CASES.items() for dtype in case.dtypes]


def test_table_covers_every_backend():
    assert BACKEND_CASES.keys() == BACKENDS.keys()
    assert {name: type(case.backend) for name, case in BACKEND_CASES.items()} == BACKENDS


def arrays(shapes, seed, scale=1.0):
    generator = np.random.default_rng(seed)
    return [scale * generator.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k != "flatten_spectrum"])
@pytest.mark.parametrize(("name", "dtype"), COMBINATIONS)
@given(shapes=SHAPES, seed=st.integers(0, 2**16))
def test_kernel_agrees_with_the_reference(name, dtype, kernel, shapes, seed):
    case = BACKEND_CASES[name]
    left, right = ([case.load(x, dtype) for x in arrays(shapes, seed + k)] for k in (0, 1))
    factors = list(np.random.default_rng(seed + 2).normal(size=len(shapes)))
    # The reference starts from what the dtype can represent, so only arithmetic is compared.
    exact = [[case.dump(x).astype(np.float64) for x in side] for side in (left, right)]
    found = KERNELS[kernel](case.backend, left, right, factors)
    wanted = KERNELS[kernel](REFERENCE, *exact, factors)
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert case.dump(x).shape == y.shape
        bound = RESOLUTION[dtype]
        size = max([1.0, *(abs(e).max() for side in exact for e in side)])
        np.testing.assert_allclose(case.dump(x), y, rtol=bound, atol=20 * size**2 * bound)


@pytest.mark.parametrize(("name", "dtype"), COMBINATIONS)
@given(shapes=SHAPES, seed=st.integers(0, 2**16))
def test_flattened_spectrum_agrees_with_the_reference(name, dtype, shapes, seed):
    case = BACKEND_CASES[name]
    # Directions near rank deficiency amplify rounding without bound; add the identity's.
    sources = [x + 3 * np.eye(*x.shape) if x.ndim == 2 else x for x in arrays(shapes, seed)]
    loaded = [case.load(x, dtype) for x in sources]
    exact = [case.dump(x).astype(np.float64) for x in loaded]
    targets = case.backend.zeros([case.load(x, "float32") for x in sources])
    found = case.backend.flatten_spectrum(targets, loaded, 5)
    wanted = REFERENCE.flatten_spectrum(exact, exact, 5)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(case.dump(x), y, rtol=0, atol=2e-3 * (1e-9 + abs(y).max()))


@pytest.mark.parametrize("name", BACKEND_CASES)
@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (5, 5), (3, 9), (9, 3), (4, 2, 3, 3)])
def test_flattened_spectrum_keeps_the_norm_and_levels_singular_values(name, shape):
    case = BACKEND_CASES[name]
    (source,) = arrays([shape], 3)
    target = case.backend.zeros([case.load(source, "float32")])
    (flat,) = case.backend.flatten_spectrum(target, [case.load(source, "float32")], 5)
    flat = case.dump(flat)
    assert flat.shape == shape
    assert np.linalg.norm(flat) == pytest.approx(np.linalg.norm(source), rel=1e-5)
    values = np.linalg.svd(flat.reshape(shape[0], -1), compute_uv=False)
    spread = np.linalg.svd(source.reshape(shape[0], -1), compute_uv=False)
    assert values.max() / values.min() <= 1.25 / 0.65
    assert np.sum(flat * source) > 0
    if len(spread) > 2:
        assert values.max() / values.min() < spread.max() / spread.min()


@pytest.mark.parametrize("name", BACKEND_CASES)
@pytest.mark.parametrize("shape", [(), (4,), (3, 3), (2, 2, 3, 3)])
def test_zero_arrays_stay_zero_when_flattened(name, shape):
    case = BACKEND_CASES[name]
    source = [case.load(np.zeros(shape), "float32")]
    (flat,) = case.backend.flatten_spectrum(case.backend.zeros(source), source, 5)
    np.testing.assert_array_equal(case.dump(flat), np.zeros(shape))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", BACKEND_CASES)
def test_every_kernel_takes_an_empty_list(name, kernel):
    assert len(KERNELS[kernel](BACKEND_CASES[name].backend, [], [], [])) == 0


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
