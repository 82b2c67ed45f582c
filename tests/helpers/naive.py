"""The rule of the corrected updates in 64 bits, one matrix at a time, by singular values."""

import numpy as np

from hybrid_predict.tensors.polynomials import CUSHION, FACTOR, MOMENT_DECAY, MOST_ENERGY, ROOT
from hybrid_predict.updates.length import lengths, usual_length
from hybrid_predict.updates.spectral import COVARIANCE_DECAY, EARLY, SEEN_EVERY


def below_one(values):
    """Singular values or eigenvalues, scaled by a bound of the largest one."""
    values = values / max(values.max(), 1e-300)
    return values / (CUSHION * (values**4).sum() ** 0.25)


def through(step, squares):
    """What a step of Halley's iteration multiplies singular values with whose squares are given."""
    return step.d + step.e / (1.0 + step.c * squares)


def orthogonal_factor(matrix):
    """The orthogonal factor, with singular values where the step sends them."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = below_one(values)
    return left * (values * through(FACTOR, values**2)) @ right


def inverse_root(covariance, floor=0.0):
    """About the inverse square root, up to scale; the floor is that of covariances in 16 bits."""
    values, basis = np.linalg.eigh(covariance)
    values = below_one(values.clip(0.0) + floor * np.linalg.norm(values))
    return basis * through(ROOT, values) @ basis.T


def covariance_of(matrix):
    """The covariance of the shorter side of a matrix, with trace one."""
    rows = matrix.T if len(matrix) > matrix.shape[1] else matrix
    return rows @ rows.T / max(np.square(rows).sum(), 1e-300)


def correlation(left, right):
    """The cosine of the angle between two arrays."""
    return float(np.vdot(left, right) / (np.linalg.norm(left) * np.linalg.norm(right)))


class Root:
    """A running covariance of the shorter side of a matrix, and its inverse root."""

    def __init__(self, side, period):
        self.covariance, self.root = np.zeros((side, side)), None
        self.every, self.period, self.seen = max(1, SEEN_EVERY // period), period, 0

    def see(self, matrix):
        if self.seen < EARLY or self.seen % self.every == 0:
            decay = COVARIANCE_DECAY ** (self.every * self.period)
            new = covariance_of(matrix)
            self.covariance = decay * self.covariance + (1 - decay) * new
            self.root = inverse_root(self.covariance)
        self.seen += 1
        return self.root


class Naive:
    """A spectral update.

    Args:
        update: Its settings.
        shapes: Rows and columns of the matrices.
        period: Full steps from one correction of a matrix to the next.
        turns: In which full step of a period each is corrected.
    """

    def __init__(self, update, shapes, period=1, turns=None):
        self.update, self.period, self.number = update, period, 0
        self.turns = turns or [0] * len(shapes)
        self.peak = 0.0  # largest rate so far
        self.mean = [np.zeros(shape) for shape in shapes]
        self.energies = [[np.zeros(side) for side in shape] for shape in shapes]
        self.levels = [np.zeros(rows) for rows, _ in shapes]
        self.roots = [
            Root(min(shape), period) if min(shape) <= update.longest else None for shape in shapes
        ]

    def average(self, k, gradient):
        """Move the average on; return its mix with the newest gradient."""
        update, mean = self.update, self.mean[k]
        share = update.newest * (1 + (correlation(gradient, mean) if mean.any() else 0.0))
        self.mean[k] = mean = update.decay * mean + (1 - update.decay) * gradient
        return (1 - share) * mean + share * gradient

    def direction(self, k, target):
        before = self.scales(k, target)
        after = list(before)
        if self.roots[k] is not None:
            side = int(target.shape[0] > target.shape[1])
            before[side] = self.roots[k].see(target)
            after[side] = np.eye(len(before[side]))
        factor = orthogonal_factor(before[0] @ target @ before[1])
        squares = np.square(factor).mean(1)
        self.levels[k] = MOMENT_DECAY * self.levels[k] + (1 - MOMENT_DECAY) * squares
        factor = after[0] @ (factor / np.sqrt(self.levels[k])[:, None]) @ after[1]
        return -factor / np.linalg.norm(factor)

    def scales(self, k, target):
        """Scale down rows and columns of much energy, as diagonal matrices."""
        scales = []
        for axis, before in enumerate(self.energies[k]):
            energy = np.square(target).sum(1 - axis) / np.square(target).sum()
            self.energies[k][axis] = mean = MOMENT_DECAY * before + (1 - MOMENT_DECAY) * energy
            ratio = np.clip(mean / mean.mean(), 1 / MOST_ENERGY, MOST_ENERGY)
            scales.append(np.diag(ratio**-0.25))
        return scales

    def step(self, gradients, rate):
        """The updates of gradient descent in one full step, corrected where it is their turn."""
        targets = [self.average(k, g) for k, g in enumerate(gradients)]
        moved = [-rate * gradient for gradient in gradients]
        due = [k for k, turn in enumerate(self.turns) if self.number % self.period == turn]
        self.number += 1
        self.peak = max(self.peak, rate)
        directions = {k: self.direction(k, targets[k]) for k in due}
        own, along, slopes = (
            np.array([product(k) for k in due])
            for product in (
                lambda k: np.linalg.norm(moved[k]),
                lambda k: np.vdot(self.mean[k], moved[k]),
                lambda k: np.vdot(self.mean[k], directions[k]),
            )
        )
        fall = rate / self.peak if rate else 1.0
        limits = [fall * usual_length(len(self.levels[k])) for k in due]
        usual = own / limits if due else own
        with np.errstate(all="ignore"):  # an update at rate 0 has no slope
            sizes = lengths(np, own, usual, along, slopes, self.update.bound, self.period)
        for k, size in zip(due, sizes, strict=True):
            share = self.update.share
            moved[k] = (1 - share) * moved[k] + share * size * directions[k]
        return moved
