"""The whitened update: covariances and their roots; `test_spectral` has its naive rule."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict import SpectralUpdate, WhitenedUpdate
from hybrid_predict.rules.polynomials import ROOT_FLOOR
from hybrid_predict.testing.contract import same, steps
from hybrid_predict.testing.updates import SHAPES, Corrected
from hybrid_predict.torch.matrices import diagonals, inverse_roots, update_covariances


@pytest.mark.parametrize(("longest", "block"), [(1, None), (8192, 4)])
def test_without_covariances_it_is_the_spectral_update(longest, block):
    spectral, whitened = map(Corrected, (SpectralUpdate(), WhitenedUpdate(longest=longest)))
    spectral.state.block = whitened.state.block = block
    for gradients in steps(SHAPES, count=3):
        assert same(spectral.directions(gradients), whitened.directions(gradients))


def test_whitened_directions_level_what_gradients_have_more_of():
    loud = torch.diag(torch.tensor([100.0, 1.0, 1.0, 1.0]))
    spread = []
    for update in (SpectralUpdate(), WhitenedUpdate()):
        corrected = Corrected(update)
        for gradients in steps(SHAPES, count=40):
            gradients[0] = gradients[0] @ loud + 0.1 * torch.eye(4)
            direction, *_ = corrected.directions(gradients)
        values = torch.linalg.svdvals(direction)
        spread.append(float(values.min() / values.max()))
    assert spread[1] > 1.2 * spread[0]


@pytest.mark.parametrize("block", [None, 16, 12, 8, 1])
def test_operations_of_whitening_are_those_that_torch_counts(block):
    update, total = WhitenedUpdate(), 0
    like = [torch.zeros(8, 4), torch.zeros(4, 3, 2), torch.zeros(3)]
    state = update.init(like, "float32")
    state.block = block
    for step in range(20):
        matrices, gradients = ([torch.randn(x.shape) for x in like] for _ in range(2))
        with FlopCounterMode(display=False) as counter:
            update.direction(state, range(3), matrices, gradients)
        total += counter.get_total_flops() if step >= 10 else 0
    assert total / 10 == pytest.approx(update.operations(like, block), abs=0.5)


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_covariances_do_not_depend_on_the_size_of_gradients(size):
    matrix, sides = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), []
    for factor in (1.0, size):
        sides.append([torch.eye(n).flatten() for n in (4, 3)])
        update_covariances(tuple(sides[-1]), factor * matrix, 0.5)
    for left, right in zip(*sides, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("period", [2, 5])
def test_a_matrix_with_gradients_in_some_steps_only_is_whitened_by_all_of_them(period):
    seldom, always = (Corrected(WhitenedUpdate(decay=0.5)) for _ in range(2))
    for step, gradients in enumerate(steps(SHAPES, count=40)):
        seldom.directions(gradients, [0] if step % period else [0, 1])
        if step % period == 0:
            always.directions(gradients)
    for name in ("left", "right", "left root", "right root", "steps"):
        assert torch.equal(seldom.state.arrays[name][1], always.state.arrays[name][1])


@pytest.mark.parametrize("rank", [1, 4])
def test_roots_of_covariances_in_16_bits_are_near_the_exact_ones(rank):
    generator, like = torch.Generator().manual_seed(0), [torch.zeros(64, rank)]
    (left,), (right,) = (diagonals(like, [n], 0.0, "bfloat16") for n in (64, 0))
    exact = np.zeros((64, 64))
    for _ in range(60):
        x = torch.randn(64, rank, generator=generator)
        update_covariances((left, right), x, 0.9)
        exact = 0.9 * exact + 0.1 * (x @ x.T / x.square().sum()).double().numpy()
    (root,) = diagonals(like, [64], 1.0, "bfloat16")
    inverse_roots([left], [root])
    values, basis = np.linalg.eigh(exact / np.linalg.norm(exact) + ROOT_FLOOR * np.eye(64))
    wanted, root = (basis * values**-0.25) @ basis.T, root.double().numpy().reshape(64, 64)
    assert np.vdot(root, wanted) > 0.97 * np.linalg.norm(root) * np.linalg.norm(wanted)
