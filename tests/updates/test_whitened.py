"""The whitened update: covariances and their roots; `test_spectral` has its naive rule."""

import math

import numpy as np
import pytest
import torch
from cases import BACKEND_CASES
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict import ConfigError, SpectralUpdate, WhitenedUpdate
from hybrid_predict.rules.polynomials import ROOT_FLOOR, ROOT_PRODUCTS
from hybrid_predict.tensors import ArrayBackend, TorchBackend
from hybrid_predict.testing.updates import SHAPES, Correction, steps

everywhere = pytest.mark.parametrize("backend", BACKEND_CASES)


@everywhere
@pytest.mark.parametrize(("longest", "block"), [(1, None), (8192, 4)])
def test_without_covariances_it_is_the_spectral_update(backend, longest, block):
    pair = [SpectralUpdate(), WhitenedUpdate(longest=longest)]
    spectral, whitened = (Correction(update, BACKEND_CASES[backend]) for update in pair)
    spectral.state.block = whitened.state.block = block
    for arrays in steps(count=3, shapes=SHAPES):
        for x, y in zip(spectral.directions(arrays), whitened.directions(arrays), strict=True):
            np.testing.assert_array_equal(x, y)


@everywhere
def test_whitened_directions_level_what_gradients_have_more_of(backend):
    loud, others = np.diag([100.0, 1.0, 1.0, 1.0]), [np.zeros(s) for s in list(SHAPES.values())[1:]]
    found = {}
    for update in (SpectralUpdate(level_rows=False), WhitenedUpdate(level_rows=False)):
        correction = Correction(update, BACKEND_CASES[backend])
        noise = np.random.default_rng(0)
        for _ in range(40):
            gradient = loud @ noise.normal(size=(4, 4)) + 0.1 * np.eye(4)
            (direction, *_) = correction.directions([gradient, *others])
        values = np.linalg.svd(direction, compute_uv=False)
        found[type(update)] = values.min() / values.max()
    assert found[WhitenedUpdate] > 1.2 * found[SpectralUpdate]


@pytest.mark.parametrize("block", [None, 16, 12, 8, 1])
def test_operations_of_whitening_are_those_that_torch_counts(block):
    update, backend, total = WhitenedUpdate(seen_every=2, roots_every=6), TorchBackend(), 0
    like = [torch.zeros(8, 4), torch.zeros(4, 3, 2), torch.zeros(3)]
    state, members = update.init(like, backend), range(3)
    state.block = block
    for step in range(9):
        gradients = [torch.randn(x.shape) for x in like]
        average, cosines = backend.zeros(like), torch.zeros(3)
        with FlopCounterMode(display=False) as counter:
            update.direction(state, members, average, gradients, cosines, backend)
        total += counter.get_total_flops() if step >= 3 else 0
    assert total / 6 == pytest.approx(update.operations(like, backend, block), abs=0.5)


def test_arrays_of_any_library_need_as_many_products_for_a_root():
    class Counted(np.ndarray):
        products = 0

        def __matmul__(self, other):
            Counted.products += 1
            return super().__matmul__(other)

    eye = np.eye(5).reshape(-1).view(Counted)
    ArrayBackend().inverse_roots([eye], [eye], [True])
    assert Counted.products == ROOT_PRODUCTS


@everywhere
@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_covariances_do_not_depend_on_the_size_of_gradients(backend, size):
    case = BACKEND_CASES[backend]
    matrix = np.random.default_rng(0).normal(size=(4, 3))
    found = []
    for factor in (1.0, size):
        value = [case.load(factor * matrix, "float32")]
        sides = case.backend.diagonals(value, 9, 1.0)
        moved = case.backend.covariances(*sides, value, 0.5, [True])
        found.append([case.dump(x) for (x,) in moved])
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)


@everywhere
@pytest.mark.parametrize("period", [2, 5])
def test_a_matrix_with_gradients_in_some_steps_only_is_whitened_by_all_of_them(backend, period):
    seldom, always = (
        Correction(WhitenedUpdate(decay=0.5), BACKEND_CASES[backend]) for _ in range(2)
    )
    for step, arrays in enumerate(steps(count=40, shapes=SHAPES)):
        members = [0] if step % period else [0, 1]
        seldom.step(arrays, members)
        if step % period == 0:
            always.step(arrays)
    for name in ("left", "right", "left root", "right root", "steps"):
        own = [BACKEND_CASES[backend].dump(c.state.arrays[name][1]) for c in (seldom, always)]
        np.testing.assert_array_equal(*own)


@pytest.mark.parametrize("rank", [1, 4])
def test_roots_of_covariances_in_16_bits_are_near_the_exact_ones(rank):
    generator, backend = np.random.default_rng(0), TorchBackend("bfloat16")
    like = [torch.zeros(64, rank)]
    left, right = backend.diagonals(like, 64, 0.0)
    exact = np.zeros((64, 64))
    for _ in range(60):
        x = generator.normal(size=(64, rank))
        left, right = backend.covariances(left, right, [torch.tensor(x).float()], 0.9, [True])
        exact = 0.9 * exact + 0.1 * x @ x.T / np.square(x).sum()
    roots, _ = backend.diagonals(like, 64, 1.0)
    (root,) = backend.inverse_roots(left, roots, [True])
    values, basis = np.linalg.eigh(exact / np.linalg.norm(exact) + ROOT_FLOOR * np.eye(64))
    wanted = (basis * values**-0.25) @ basis.T
    found = root.double().numpy().reshape(64, 64)
    assert np.vdot(found, wanted) > 0.97 * np.linalg.norm(found) * np.linalg.norm(wanted)


def test_a_decay_that_16_bits_cannot_store_is_refused():
    like, backend = [torch.zeros(2, 2)], TorchBackend("bfloat16")
    WhitenedUpdate(covariance_decay=0.98).init(like, backend)
    with pytest.raises(ConfigError, match="history_dtype"):
        WhitenedUpdate(covariance_decay=0.98, seen_every=1).init(like, backend)


@pytest.mark.parametrize("name", ["longest", "seen_every", "roots_every"])
@pytest.mark.parametrize("value", [0, 1.5, True, None])
def test_whole_numbers_of_the_whitened_update_are_checked(name, value):
    with pytest.raises(ConfigError, match=f"{name}: expected an integer of at least 1"):
        WhitenedUpdate(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan, "x"])
def test_the_decay_of_covariances_is_checked(value):
    with pytest.raises(ConfigError, match=r"covariance_decay: expected a number in \[0, 1\)"):
        WhitenedUpdate(covariance_decay=value)
