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


class TwinAdamW:
    """Adam's direction with decoupled weight decay, one array after the other."""

    def __init__(self, arrays):
        self.m, self.v = ([np.zeros_like(a) for a in arrays] for _ in range(2))
        self.t = 0

    def step(self, weights, grads, rate):
        self.t += 1
        moved = []
        for k, (w, g) in enumerate(zip(weights, grads, strict=True)):
            self.m[k] = BETAS[0] * self.m[k] + (1 - BETAS[0]) * g
            self.v[k] = BETAS[1] * self.v[k] + (1 - BETAS[1]) * g * g
            m = self.m[k] / (1 - BETAS[0] ** self.t)
            v = self.v[k] / (1 - BETAS[1] ** self.t)
            moved.append(w - rate * (m / (np.sqrt(v) + EPS) + DECAY * w))
        return moved


def twin_outer(steps, every, rate, momentum):
    w = anchor = start()
    buffer, adam = [np.zeros_like(x) for x in w], TwinAdamW(w)
    for t in range(steps):
        w = adam.step(w, gradients(t, w), RATE * factor(t))
        if (t + 1) % every == 0:
            s = [a - x for a, x in zip(anchor, w, strict=True)]
            buffer = [momentum * b + x for b, x in zip(buffer, s, strict=True)]
            triples = zip(anchor, buffer, s, strict=True)
            w = anchor = [a - rate * (momentum * b + x) for a, b, x in triples]
    return w


def twin_nesterov(steps, ahead, decay):
    w, peak = start(), 0.0
    drift, adam = [np.zeros_like(a) for a in w], TwinAdamW(w)
    for t in range(steps):
        moved = adam.step(w, gradients(t, w), RATE * factor(t))
        pairs = zip(drift, moved, w, strict=True)
        drift = [decay * m + (1 - decay) * (b - a) for m, b, a in pairs]
        w, peak = moved, max(peak, factor(t))
        if round(0.15 * steps) <= t + 1 < round(0.75 * steps):
            share = ahead * factor(t) / peak
            w = [a + share * m for a, m in zip(w, drift, strict=True)]
    return w


def twin_gpa(steps, mu_x, mu_y):
    x = z = y = start()
    adam = TwinAdamW(z)
    for t in range(steps):
        z = adam.step(z, gradients(t, y), RATE * factor(t))
        x = [mu_x * a + (1 - mu_x) * b for a, b in zip(x, z, strict=True)]
        y = [mu_y * a + (1 - mu_y) * b for a, b in zip(x, z, strict=True)]
    return y, x


def twin_ema(steps, decay):
    w = average = start()
    adam = TwinAdamW(w)
    for t in range(steps):
        w = adam.step(w, gradients(t, w), RATE * factor(t))
        average = [decay * a + (1 - decay) * b for a, b in zip(average, w, strict=True)]
    return w, average


def twin_schedule_free(steps, warmup):
    x = z = y = start()
    v, total, beta = [np.zeros_like(a) for a in x], 0.0, BETAS[0]
    for t in range(steps):
        rate = RATE * min(1.0, (t + 1) / warmup)
        g = gradients(t, y)
        v = [BETAS[1] * a + (1 - BETAS[1]) * b * b for a, b in zip(v, g, strict=True)]
        root = [np.sqrt(a / (1 - BETAS[1] ** (t + 1))) + EPS for a in v]
        rows = zip(z, y, g, root, strict=True)
        z = [a - rate * (b / r + DECAY * w) for a, w, b, r in rows]
        total += rate**2
        c = rate**2 / total
        x = [(1 - c) * a + c * b for a, b in zip(x, z, strict=True)]
        y = [beta * a + (1 - beta) * b for a, b in zip(x, z, strict=True)]
    return y, x


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def twin_muon(steps, momentum=0.95):
    w = [x.reshape(len(x), -1) for x in start(MATRICES)]
    b = [np.zeros_like(x) for x in w]
    for t in range(steps):
        rate = RATE * factor(t)
        shaped = [x.reshape(shape) for x, shape in zip(w, MATRICES, strict=True)]
        for k, g in enumerate(gradients(t, shaped)):
            g = g.reshape(len(g), -1)
            b[k] = momentum * b[k] + (1 - momentum) * g
            x = (1 - momentum) * g + momentum * b[k]
            x = x / np.linalg.norm(x)
            for _ in range(5):
                gram = x @ x.T
                x = sum(
                    c * p @ x
                    for c, p in zip(NEWTON_SCHULZ, (np.eye(len(x)), gram, gram @ gram), strict=True)
                )
            ratio = 0.2 * math.sqrt(max(x.shape))
            w[k] = (1 - rate * DECAY) * w[k] - rate * ratio * x
    return [x.reshape(shape) for x, shape in zip(w, MATRICES, strict=True)]


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


def twin_normuon(steps, momentum=0.95, beta2=0.95):
    average, rows = {}, {}

    def move(k, t, g):
        average[k] = momentum * average.get(k, 0) + (1 - momentum) * g
        o = orthogonal((1 - momentum) * g + momentum * average[k])
        rows[k] = beta2 * rows.get(k, 0) + (1 - beta2) * (o**2).mean(1, keepdims=True)
        o = o / np.sqrt(rows[k])
        return 0.2 * math.sqrt(o.size) * o / np.linalg.norm(o)

    return matrix_steps(steps, move, MATRICES)


def twin_soap(steps, beta=0.95, every=10):
    """Every dimension has a basis, turned in the order of its eigenvalues; decay comes last."""
    w, kept = start(SQUARES), {}

    def along(x, axis, q):
        return np.moveaxis(np.tensordot(q.T, x, axes=(1, axis)), 0, axis)

    def covariances(g):
        flat = [np.moveaxis(g, axis, 0).reshape(g.shape[axis], -1) for axis in range(g.ndim)]
        return [(1 - beta) * x @ x.T for x in flat]

    for t in range(steps):
        for k, g in enumerate(gradients(t, w)):
            seen = covariances(g)
            if t == 0:
                bases = [np.linalg.eigh(c)[1][:, ::-1] for c in seen]
                kept[k] = [np.zeros_like(g), np.zeros_like(g), seen, bases]
                continue
            m, v, cov, bases = kept[k]
            turned, m = g, beta * m + (1 - beta) * g
            moved = m
            for axis, q in enumerate(bases):
                turned, moved = along(turned, axis, q), along(moved, axis, q)
            v = beta * v + (1 - beta) * turned**2
            moved = moved / (np.sqrt(v) + 1e-8) * math.sqrt(1 - beta**t) / (1 - beta**t)
            for axis, q in enumerate(bases):
                moved = along(moved, axis, q.T)
            rate = RATE * factor(t)
            w[k] = (1 - rate * DECAY) * (w[k] - rate * moved)
            cov = [beta * c + s for c, s in zip(cov, seen, strict=True)]
            for axis, c in enumerate(cov if t % every == 0 else []):
                order = np.argsort(-np.sum(bases[axis] * (c @ bases[axis]), axis=0))
                v = np.take(v, order, axis=axis)
                bases[axis] = np.linalg.qr((c @ bases[axis])[:, order])[0]
            kept[k] = [m, v, cov, bases]
    return w


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


def twin_ademamix(steps, betas, alpha, updates):
    w = start()
    fast, slow, v = ([np.zeros_like(a) for a in w] for _ in range(3))
    first, second, third = betas
    for t in range(1, steps + 1):
        share = alpha if updates is None else min(alpha, alpha * t / updates)
        decay = third
        if updates is not None:
            a, b, s = math.log(first), math.log(third), t / updates
            decay = min(third, math.exp(a * b / ((1 - s) * b + s * a)))
        rate = RATE * factor(t - 1)
        for k, g in enumerate(gradients(t - 1, w)):
            fast[k] = first * fast[k] + (1 - first) * g
            slow[k] = decay * slow[k] + (1 - decay) * g
            v[k] = second * v[k] + (1 - second) * g**2
            ahead = fast[k] / (1 - first**t) + share * slow[k]
            root = np.sqrt(v[k] / (1 - second**t)) + EPS
            w[k] = (1 - rate * DECAY) * w[k] - rate * ahead / root
    return w


def twin_kron(steps, momentum=0.9):
    """Of matrices: triangular factors are learnt from noise, whose sequence has the seed 0."""
    generator = torch.Generator().manual_seed(0)
    average, factors = {}, {}

    def bound(a):
        """A lower bound of the largest singular value."""
        top, square = np.abs(a).max(), (a / np.abs(a).max()) ** 2
        a = a / top
        if square.sum(0).max() > square.sum(1).max():
            x = a[:, square.sum(0).argmax()] @ a
            return top * np.linalg.norm(x / np.linalg.norm(x) @ a.T)
        x = a @ a[square.sum(1).argmax()]
        return top * np.linalg.norm(a.T @ (x / np.linalg.norm(x)))

    w = start(MATRICES[:2])
    for t in range(1, steps + 1):
        for k, g in enumerate(gradients(t - 1, w)):
            average[k] = momentum * average.get(k, 0) + (1 - momentum) * g
            m = average[k] / (1 - momentum**t)
            left, right = factors.get(k, [np.eye(len(g)), np.eye(g.shape[1])])
            noise = torch.randn(g.shape, generator=generator).double().numpy()
            a = left @ m @ right.T
            b = np.linalg.inv(left).T @ noise @ np.linalg.inv(right)
            for q, (up, down) in ((left, (a @ a.T, b @ b.T)), (right, (a.T @ a, b.T @ b))):
                q -= 0.1 * np.triu(up - down) / bound(up + down) @ q
            factors[k] = [left, right]
            u = left.T @ left @ m @ right.T @ right
            u *= min(1.0, 1.1 / (math.sqrt((u**2).mean()) + 1e-6))
            w[k] = w[k] - RATE * factor(t - 1) * (u + DECAY * w[k])
    return w
