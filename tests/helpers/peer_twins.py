"""NumPy twins of the benchmark's peers, and the loop that drives the peers themselves."""

import math

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

SHAPES = ((4, 3), (5,), (3, 2, 2, 2))
MATRICES = ((4, 3), (3, 7), (3, 2, 2, 2))
SQUARES = ((4, 4), (5, 5), (4, 2, 2, 1))
"""As matrices of full rank, so that eigenvectors of covariances are unique but for their signs."""
RATE, BETAS, EPS, DECAY = 0.03, (0.9, 0.97), 1e-8, 0.1
STEPS = 23


def factor(t):
    """A learning-rate schedule: warm-up, then cosine."""
    return (t + 1) / 5 if t < 5 else 0.5 * (1 + math.cos(math.pi * (t - 5) / STEPS))


def start(shapes=SHAPES):
    generator = np.random.default_rng(3)
    return [generator.normal(size=shape) for shape in shapes]


def gradients(t, weights):
    """A rough quadratic's gradient with noise: it depends on the step and on the weights."""
    generator = np.random.default_rng(100 + t)
    return [(1 + 0.5 * math.sin(t)) * w + generator.normal(size=w.shape) for w in weights]


class Loop:
    """A training loop that knows nothing but parameters, a peer, and schedulers."""

    def __init__(self, make, shapes=SHAPES, scheduled=True):
        self.parameters = [torch.nn.Parameter(torch.tensor(w)) for w in start(shapes)]
        self.peer = make(self.parameters)
        inner = getattr(self.peer, "optimizers", (self.peer,))
        self.schedulers = [LambdaLR(o, factor) for o in inner] if scheduled else []
        self.taken = 0

    def train(self, steps):
        for _ in range(steps):
            self.peer.zero_grad()
            for p, g in zip(self.parameters, gradients(self.taken, self.weights()), strict=True):
                p.grad = torch.tensor(g)
            self.peer.step()
            for scheduler in self.schedulers:
                scheduler.step()
            self.taken += 1
        return self

    def weights(self):
        return [p.detach().numpy().copy() for p in self.parameters]


def assert_close(found, wanted, rtol=1e-9):
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-12)


def assert_same(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonal(x):
    """Newton-Schulz iteration, as in `twin_muon`."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        powers = (np.eye(len(x)), gram, gram @ gram)
        x = sum(c * p @ x for c, p in zip(NEWTON_SCHULZ, powers, strict=True))
    return x


def matrix_steps(steps, move, shapes):
    """Train matrices, kernels read as such, by ``move(k, t, gradient)`` and decoupled decay."""
    w = [x.reshape(len(x), -1) for x in start(shapes)]
    for t in range(steps):
        shaped = [x.reshape(shape) for x, shape in zip(w, shapes, strict=True)]
        for k, g in enumerate(gradients(t, shaped)):
            moved = move(k, t, g.reshape(len(g), -1))
            if moved is not None:
                w[k] = (1 - RATE * factor(t) * DECAY) * w[k] - RATE * factor(t) * moved
    return [x.reshape(shape) for x, shape in zip(w, shapes, strict=True)]


def twin_soap_muon(steps, momentum=0.95, beta=0.95, every=10):
    kept = {}

    def move(k, t, g):
        seen = [g @ g.T, g.T @ g]
        if k not in kept:
            kept[k] = [np.zeros_like(g), np.zeros_like(g), seen,
                       [np.linalg.eigh(c)[1] for c in seen]]  # fmt: skip
            return None
        m, v, cov, (left, right) = kept[k]
        m = momentum * m + (1 - momentum) * g
        v = beta * v + (1 - beta) * (left.T @ g @ right) ** 2
        ahead = left.T @ (momentum * m + (1 - momentum) * g) @ right
        u = left @ (ahead / (np.sqrt(v / (1 - beta**t)) + 1e-8)) @ right.T
        cov = [beta * c + (1 - beta) * s for c, s in zip(cov, seen, strict=True)]
        basis = [left, right]
        if t % every == 0:
            basis = [np.linalg.qr(c @ q)[0] for c, q in zip(cov, basis, strict=True)]
        kept[k] = [m, v, cov, basis]
        return 0.2 * math.sqrt(max(u.shape)) * orthogonal(u)

    return matrix_steps(steps, move, SQUARES)
