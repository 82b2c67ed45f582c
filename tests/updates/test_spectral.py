"""The spectral update: the frozen numbers of the rule it stands for, its bound, and its lengths."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from cases import BACKEND_CASES
from torch import nn

from hybrid_predict import (
    ConfigError,
    HybridConfig,
    HybridEngine,
    SpectralUpdate,
    WhitenedUpdate,
)
from hybrid_predict.rules.polynomials import CUSHION, POLYNOMIALS
from hybrid_predict.tensors.base import as_matrix
from hybrid_predict.testing.updates import SHAPES, Correction, steps
from hybrid_predict.updates import UPDATES, make_update

RATE = 0.002
SIZES = (1.0, 0.2, 3.0, 0.5)
MATRIX_SHAPES = {"square": (4, 4), "tall": (6, 2), "wide": (2, 5), "convolution": (3, 2, 2, 2)}
UNBOUNDED = {
    "default": SpectralUpdate(bound=None),
    "constant share": SpectralUpdate(bound=None, damped=False, newest=0.3, decay=0.8),
    "rows as they are": SpectralUpdate(bound=None, level_rows=False, stretch=1.0, magnify=1.0),
    "to a higher rate": SpectralUpdate(bound=None, muon_rate=0.05, magnify=20.0, stretch=1.2),
    "five polynomials": SpectralUpdate(bound=None, iterations=5),
    "whitened": WhitenedUpdate(bound=None),
    "shorter sides whitened": WhitenedUpdate(bound=None, longest=3, covariance_decay=0.5),
    "whitened seldom": WhitenedUpdate(bound=None, seen_every=3, roots_every=3),
}

everywhere = pytest.mark.parametrize("backend", BACKEND_CASES)


def gradients(step):
    """Those that the frozen numbers were made of; a part persists, a part changes."""
    size, found = SIZES[step], []
    for k, shape in enumerate(MATRIX_SHAPES.values()):
        n = np.arange(math.prod(shape))
        values = size * (np.sin(1.3 * n * n + k) + 0.8 * np.cos(n * (step + 1.0) + k))
        found.append(torch.tensor(values.reshape(shape), dtype=torch.float32))
    return found


class Matrices(nn.Module):
    """Four matrices that are given their gradients."""

    def __init__(self):
        super().__init__()
        for name, shape in MATRIX_SHAPES.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))


def displacements(update):
    """What each full step moves when an optimizer goes down the gradients by a rate."""
    model = Matrices()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    config = HybridConfig(
        total_steps=100, speedup=1, updates={"hidden": update}, kinds={"*": "hidden"}
    )
    found = []
    with HybridEngine(model, optimizer, config) as engine:
        for step in range(len(SIZES)):
            before = [p.detach().clone() for p in model.parameters()]
            engine.before_step()
            for p, gradient in zip(model.parameters(), gradients(step), strict=True):
                p.grad = gradient
            optimizer.step()
            engine.after_step()
            pairs = zip(model.parameters(), before, strict=True)
            found.append([(p - b).detach() for p, b in pairs])
    return found


class Covariance:
    """A running covariance of one side in 64 bits, and its root by eigenvalues.

    Args:
        side: Its rows.
        update: The whitened update.
    """

    def __init__(self, side, update):
        self.value, self.root, self.update = np.zeros((side, side)), np.eye(side), update

    def see(self, rows, step):
        update, side = self.update, len(self.root)
        if side > update.longest:
            return
        if step < 3 or step % update.seen_every == 0:
            decay = update.covariance_decay**update.seen_every
            square = rows @ rows.T / np.square(rows).sum()
            self.value = decay * self.value + (1 - decay) * square
        if step < 3 or step % update.roots_every == 0:
            values, basis = np.linalg.eigh(self.value)
            inverse = self.through(values, 3)
            inverse = inverse / (CUSHION * (inverse**4).sum() ** 0.25)
            self.root = basis * (inverse * self.through(inverse, 2)) @ basis.T

    @staticmethod
    def through(values, count):
        """What the polynomials multiply a singular value with whose square is given."""
        values = values / (CUSHION * (values**4).sum() ** 0.25)
        factor = np.ones_like(values)
        for a, b, c in POLYNOMIALS[count]:
            step = a + b * values + c * values**2
            factor, values = step * factor, values * step**2
        return factor


class Naive:
    """The rule of the docstrings in 64 bits, one matrix at a time, by singular values.

    Args:
        update: Its settings.
    """

    def __init__(self, update):
        self.update, self.longest = update, 0.0
        self.mean = [np.zeros(as_matrix(shape)) for shape in MATRIX_SHAPES.values()]
        self.rows = [np.zeros(len(m)) for m in self.mean]
        self.taken, self.sides = 0, []
        if isinstance(update, WhitenedUpdate):
            self.sides = [[Covariance(side, update) for side in m.shape] for m in self.mean]

    def factor(self, matrix):
        """The orthogonal factor, with singular values where the polynomials send them."""
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        values = values / (CUSHION * (values**4).sum() ** 0.25)
        if min(matrix.shape) == 1:
            values = np.ones(1)
        else:
            for a, b, c in POLYNOMIALS[self.update.iterations]:
                values = a * values + b * values**3 + c * values**5
        return left * values @ right

    def direction(self, k, gradient):
        update, mean = self.update, self.mean[k]
        size = np.linalg.norm(gradient) * np.linalg.norm(mean)
        cosine = np.vdot(gradient, mean) / size if size else 0.0
        share = update.newest * (1 + cosine) if update.damped else update.newest
        self.mean[k] = mean = update.decay * mean + (1 - update.decay) * gradient
        target = (1 - share) * mean + share * gradient
        if self.sides:
            left, right = self.sides[k]
            left.see(gradient, self.taken)
            right.see(gradient.T, self.taken)
            target = left.root @ target @ right.root
        found = self.factor(target)
        if update.level_rows:
            self.rows[k] = 0.95 * self.rows[k] + 0.05 * np.square(found).mean(1)
            found = found / np.sqrt(self.rows[k])[:, None]
        return -found / np.linalg.norm(found)

    def step(self, arrays):
        update, shapes = self.update, [m.shape for m in self.mean]
        matrices = [g.numpy().astype(float).reshape(s) for g, s in zip(arrays, shapes, strict=True)]
        found = [self.direction(k, g) for k, g in enumerate(matrices)]
        self.taken += 1
        own = [RATE * np.linalg.norm(g) for g in matrices]
        self.longest = max(self.longest, np.linalg.norm(own))
        unit = math.sqrt(sum(map(min, shapes)))
        factor = min(update.magnify, max(1.0, update.muon_rate * unit / self.longest))
        tall = [min(update.stretch, max(1.0, math.sqrt(m / n))) for m, n in shapes]
        return [factor * t * o * d for t, o, d in zip(tall, own, found, strict=True)]


@pytest.mark.parametrize("case", UNBOUNDED)
def test_unbounded_it_moves_as_the_naive_rule(case):
    update = UNBOUNDED[case]
    naive = Naive(update)
    for step, moved in enumerate(displacements(update)):
        for x, wanted in zip(moved, naive.step(gradients(step)), strict=True):
            size = float(np.linalg.norm(wanted))
            np.testing.assert_allclose(
                x.numpy().reshape(wanted.shape), wanted, rtol=0, atol=1e-4 * size
            )


@pytest.mark.parametrize("name", UPDATES)
def test_weights_of_64_bits_may_have_averages_of_16(name):
    model = Matrices().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    config = HybridConfig(
        total_steps=9, speedup=1, updates={"hidden": name}, kinds={"*": "hidden"},
        history_dtype="bfloat16", max_overhead=1e9,
    )  # fmt: skip
    with HybridEngine(model, optimizer, config) as engine:
        for step in range(3):
            engine.before_step()
            for p, gradient in zip(model.parameters(), gradients(step), strict=True):
                p.grad = gradient.double()
            optimizer.step()
            engine.after_step()
    assert engine.ledger.corrected_steps == 3


def own_lengths():
    """How long the optimizer's own updates are."""
    return [[RATE * float(g.norm()) for g in gradients(k)] for k in range(4)]


@pytest.mark.parametrize("bound", [1.0, 1.5, 2.0, None])
def test_no_update_is_longer_than_the_bound(bound):
    # At this rate the update would be twenty times as long as the optimizer's.
    update = SpectralUpdate(bound=bound, muon_rate=10.0, magnify=20.0)
    ratios = [
        float(x.norm()) / own
        for moved, owns in zip(displacements(update), own_lengths(), strict=True)
        for x, own in zip(moved, owns, strict=True)
    ]
    if bound is None:
        assert min(ratios) > 5
    else:
        assert ratios == pytest.approx([bound] * len(ratios), rel=1e-4)


def test_the_default_bound_is_two():
    free, bounded = (displacements(SpectralUpdate(**b)) for b in ({"bound": None}, {}))
    long = 0
    for free_step, bounded_step, owns in zip(free, bounded, own_lengths(), strict=True):
        for x, y, own in zip(free_step, bounded_step, owns, strict=True):
            factor = min(1.0, 2 * own / float(x.norm()))
            torch.testing.assert_close(y, factor * x, rtol=1e-4, atol=1e-7)
            long += factor < 1
    assert long > 0


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_update_is_corrected(share):
    full, part = (displacements(SpectralUpdate(share=s)) for s in (1.0, share))
    for k, (whole, found) in enumerate(zip(full, part, strict=True)):
        for x, y, g in zip(whole, found, gradients(k), strict=True):
            torch.testing.assert_close(y, share * x - (1 - share) * RATE * g, rtol=1e-4, atol=1e-6)


@everywhere
@pytest.mark.parametrize("damped", [False, True])
@pytest.mark.parametrize("level_rows", [False, True])
def test_the_direction_is_that_of_the_levelled_orthogonal_factor(backend, level_rows, damped):
    update = SpectralUpdate(decay=0.8, newest=0.3, damped=damped, level_rows=level_rows)
    correction = Correction(update, BACKEND_CASES[backend])
    shape = SHAPES["tall"]
    average, moments = np.zeros(shape), np.zeros(shape[0])
    for arrays in steps(count=5, shapes=SHAPES):
        gradient, share = arrays[1], 0.3
        if damped and average.any():
            norms = np.linalg.norm(gradient) * np.linalg.norm(average)
            share = 0.3 * (1 + np.vdot(gradient, average) / norms)
        average = 0.8 * average + 0.2 * gradient
        left, _, right = np.linalg.svd(
            (1 - share) * average + share * gradient, full_matrices=False
        )
        wanted = left @ right
        if level_rows:
            moments = 0.95 * moments + 0.05 * np.square(wanted).mean(1)
            wanted = wanted / np.sqrt(moments)[:, None]
        found = correction.directions(arrays)[1]
        # Newton-Schulz leaves singular values between about 0.7 and 1.2 of each other.
        assert -np.vdot(found, wanted) > 0.95 * np.linalg.norm(wanted)


@everywhere
@pytest.mark.parametrize("stretch", [1.0, 1.2, 100.0])
def test_tall_matrices_move_further_up_to_the_stretch(backend, stretch):
    correction = Correction(SpectralUpdate(stretch=stretch, magnify=1.0), BACKEND_CASES[backend])
    correction.step(steps(count=1, shapes=SHAPES)[0])
    wanted = [min(stretch, ratio) for ratio in (1.0, 2**0.5, 1.0, 1.0)]
    np.testing.assert_allclose(correction.lengths([1.0] * 4), wanted, rtol=1e-6)


@everywhere
@pytest.mark.parametrize("muon_rate", [1e-3, 1.0, 10.0])
def test_lengths_are_those_of_a_muon_of_the_rate_asked_for(backend, muon_rate):
    update = SpectralUpdate(stretch=1.0, muon_rate=muon_rate, magnify=8.0)
    correction, longest = Correction(update, BACKEND_CASES[backend]), 0.0
    unit = math.sqrt(4 + 3 + 3 + 4)
    for size in (0.1, 0.05, 0.3, 0.01):
        own = np.array([1.0, 2.0, 3.0, 0.5]) * size
        longest = max(longest, float(np.linalg.norm(own)))
        factor = min(8.0, max(1.0, muon_rate * unit / longest))
        np.testing.assert_allclose(correction.lengths(own), factor * own, rtol=1e-5)


@everywhere
def test_what_persists_is_followed_where_gradients_turn_back(backend):
    persists, turns = np.eye(4), np.outer([0, 0, 0, 1.0], [0, 0, 1.0, 0])
    others = [np.zeros(shape) for shape in list(SHAPES.values())[1:]]
    along = []
    for damped in (False, True):
        update = SpectralUpdate(damped=damped, level_rows=False)
        correction = Correction(update, BACKEND_CASES[backend])
        for k in range(60):
            moved = 1e-4 * persists + (-1) ** k * turns
            found = correction.directions([moved, *others])
        along.append(-np.vdot(found[0], persists))
    assert along[1] > 1.5 * along[0] > 0


FACTORS = (0.5, math.inf, math.nan)
OUT_OF_RANGE = {
    "share": (-0.1, 1.1, math.nan, True),
    "bound": (0.9, math.inf, math.nan, "2"),
    "decay": (-0.1, 1.0, math.nan),
    "newest": (-0.1, 0.6, math.nan),
    "stretch": FACTORS,
    "magnify": FACTORS,
    "muon_rate": (0.0, math.inf, math.nan),
    "level_rows": (1,),
    "damped": (1,),
    "iterations": (0, 6, 1.5, True),
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name, bad in OUT_OF_RANGE.items() for value in bad]
)
def test_hyperparameters_out_of_range_are_refused(argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        SpectralUpdate(**{argument: value})


def test_every_hyperparameter_is_refused_out_of_range():
    assert {f.name for f in dataclasses.fields(SpectralUpdate)} == OUT_OF_RANGE.keys()


def test_a_constant_share_of_the_newest_gradient_may_be_all_of_it():
    assert SpectralUpdate(newest=1.0, damped=False).newest == 1.0


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_a_value_that_its_name_stands_for(name):
    made = make_update(name)
    assert made == UPDATES[name]()
    assert make_update(made) is made


@pytest.mark.parametrize("choice", ["muon", None, 3])
def test_an_unknown_update_is_refused_with_the_known_names(choice):
    with pytest.raises(
        ConfigError, match="updates: expected one of spectral, whitened, or an Abstract"
    ):
        make_update(choice)
