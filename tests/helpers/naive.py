"""The rules of the corrected updates in 64 bits, one matrix at a time, by singular values."""

import math

import numpy as np

from hybrid_predict import WhitenedUpdate
from hybrid_predict.rules.budget import split_rows
from hybrid_predict.rules.length import MAGNIFY, MUON_RATE, STRETCH
from hybrid_predict.rules.polynomials import (
    CUSHION,
    MOMENT_DECAY,
    MOST_ENERGY,
    POLYNOMIALS,
    ROOT_POLYNOMIALS,
)
from hybrid_predict.updates.whitened import COVARIANCE_DECAY, EARLY, ROOTS_EVERY, SEEN_EVERY


def orthogonal_factor(matrix, iterations, block=None):
    """The orthogonal factor, with singular values where the polynomials send them."""
    if len(matrix) > matrix.shape[1]:
        return orthogonal_factor(matrix.T, iterations, block).T
    _, size = split_rows(len(matrix), block)
    parts = [matrix[k : k + size] for k in range(0, len(matrix), size)]
    return np.concatenate([_factor(part, iterations, size) for part in parts])


def _factor(matrix, iterations, size):
    left, values, right = np.linalg.svd(matrix / np.abs(matrix).max(), full_matrices=False)
    values = values / (CUSHION * (values**4).sum() ** 0.25)
    if size == 1:
        return left @ right
    for a, b, c in POLYNOMIALS[iterations]:
        values = a * values + b * values**3 + c * values**5
    return left * values @ right


class Covariance:
    """A running covariance of the rows of one side, and its inverse root by eigenvalues."""

    def __init__(self, side, longest):
        self.value, self.root, self.longest = np.zeros((side, side)), np.eye(side), longest

    @property
    def used(self):
        return len(self.root) <= self.longest

    def see(self, rows, step):
        if not self.used:
            return
        if step < EARLY or step % SEEN_EVERY == 0:
            decay = COVARIANCE_DECAY**SEEN_EVERY
            self.value = decay * self.value + (1 - decay) * rows @ rows.T / np.square(rows).sum()
        if step < EARLY or step % ROOTS_EVERY == 0:
            values, basis = np.linalg.eigh(self.value)
            inverse = self.through(values, ROOT_POLYNOMIALS[0])
            inverse = inverse / (CUSHION * (inverse**4).sum() ** 0.25)
            self.root = basis * (inverse * self.through(inverse, ROOT_POLYNOMIALS[1])) @ basis.T

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
    """An update without a bound.

    Args:
        update: Its settings.
        shapes: Rows and columns of the matrices.
    """

    def __init__(self, update, shapes):
        self.update, self.shapes, self.longest, self.taken = update, shapes, 0.0, 0
        self.mean = [np.zeros(shape) for shape in shapes]
        self.energies = [[np.zeros(side) for side in shape] for shape in shapes]
        self.levels = [np.zeros(shape[0]) for shape in shapes]
        self.sides = []
        if isinstance(update, WhitenedUpdate):
            self.sides = [[Covariance(n, update.longest) for n in shape] for shape in shapes]

    def direction(self, k, gradient):
        update, mean = self.update, self.mean[k]
        size = np.linalg.norm(gradient) * np.linalg.norm(mean)
        share = update.newest * (1 + (np.vdot(gradient, mean) / size if size else 0.0))
        self.mean[k] = mean = update.decay * mean + (1 - update.decay) * gradient
        target = (1 - share) * mean + share * gradient
        before = self.scales(k, target)
        after = [np.eye(len(scale)) for scale in before]
        if self.sides:
            self.sides[k][0].see(gradient, self.taken)
            self.sides[k][1].see(gradient.T, self.taken)
        for axis in range(2):
            if self.sides and self.sides[k][axis].used:
                before[axis] = self.sides[k][axis].root
            else:
                after[axis] = before[axis]
        target = before[0] @ target @ before[1]
        factor = orthogonal_factor(target, update.iterations)
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
        """The corrected updates of gradient descent."""
        directions = [self.direction(k, g) for k, g in enumerate(gradients)]
        self.taken += 1
        lengths = [rate * np.linalg.norm(g) for g in gradients]
        self.longest = max(self.longest, np.linalg.norm(lengths))
        unit = math.sqrt(sum(map(min, self.shapes)))
        factor = min(MAGNIFY, max(1.0, MUON_RATE * unit / self.longest))
        tall = [min(STRETCH, max(1.0, math.sqrt(m / n))) for m, n in self.shapes]
        return [factor * t * u * d for t, u, d in zip(tall, lengths, directions, strict=True)]
