"""Learned forecasts that decision 8 measured, made of a window; none of them is shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from candidates import LabPredictor, LabState, combination, gathered, own_update, products
from torch import Tensor

from hybrid_predict import WeightDelta
from hybrid_predict.backends import AbstractBackend


def remember(state: LabState, backend: AbstractBackend[Any], size: int) -> None:
    """Move the average, which holds the newest block, into a window of ``size`` blocks."""
    state.window = [*state.window, state.average][-size:]
    state.average = backend.zeros(state.average)


def modes(gram: np.ndarray, horizon: float, rank: int) -> np.ndarray:
    r"""Coefficients on blocks 0..W-2 of what dynamic modes make of the next ``horizon`` blocks.

    With :math:`D = [d_1 \dots d_{W-1}] = U S V^\top` cut to ``rank`` and D' one block later, the
    modes are those of :math:`U^\top D' V S^{-1}`, eigenvalues clipped to the unit disc, and the sum
    is :math:`\sum_{j=1}^{n} A^j d_W`, continued to fractions of a block.

    Args:
        gram: Inner products of the W blocks, shape (W, W).
        horizon: n, in blocks.
        rank: Most modes; those below 1e-3 of the largest singular value are left out too.
    """
    size = len(gram)
    squares, vectors = np.linalg.eigh(gram[:-1, :-1])
    if squares[-1] <= 0:
        return np.zeros(size - 1)
    kept = np.flatnonzero(squares > 1e-6 * squares[-1])[-rank:]
    whiten = vectors[:, kept] / np.sqrt(squares[kept])
    values, basis = np.linalg.eig(whiten.T @ gram[:-1, 1:] @ whiten)
    values = values / np.maximum(1.0, np.abs(values))
    start = np.linalg.lstsq(basis, (whiten.T @ gram[:-1, -1]).astype(complex), rcond=None)[0]
    steady = np.abs(values - 1) < 1e-9
    rest = np.where(steady, 0.5, values)
    sums = np.where(steady, horizon, rest * (1 - (rest + 0j) ** horizon) / (1 - rest))
    return np.asarray(whiten @ (basis @ (sums * start)).real)


def weights_of_extrapolation(gram: np.ndarray, damping: float) -> np.ndarray:
    r"""Anderson's weights :math:`c \propto (R^\top R + \lambda \|R\|^2 I)^{-1} 1`, of sum 1.

    Args:
        gram: :math:`R^\top R`, inner products of W displacements.
        damping: :math:`\lambda`, relative to the largest eigenvalue.
    """
    largest = float(np.linalg.eigvalsh(gram)[-1])
    if largest <= 0:
        return np.full(len(gram), 1.0 / len(gram))
    solved = np.linalg.solve(gram / largest + damping * np.eye(len(gram)), np.ones(len(gram)))
    return np.asarray(solved / solved.sum())


@dataclass(frozen=True, kw_only=True)
class LowRankPredictor(LabPredictor):
    r"""Forecast by dynamic mode decomposition of the last W block displacements, per tensor.

    .. math:: d_{i+1} \approx A d_i, \qquad \hat\Delta = \sum_{j=1}^{h/s} A^j d_W

    with d the sums of s of the optimizer's updates. A is fitted on the span of the window, so only
    W x W matrices are taken apart; eigenvalues are clipped to the unit disc. The newest block of
    the forecast is the last full one.

    Args:
        size: W, at least 2.
        stride: s, at least 1.
        rank: Most modes.

    References:
        Schmid, Dynamic mode decomposition (2010); Dogra and Redman, Optimizing neural networks via
        Koopman operator theory (2020).
    """

    size: int = 8
    stride: int = 4
    rank: int = 3

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Add the update to the block under way."""
        update = own_update(observed, applied)
        if gathered(state, update, backend, self.stride):
            remember(state, backend, self.size)
            state.tables["gram"] = products(state.window, state.window)

    def forecast(self, state, horizons, *, closed_loop=True):  # type: ignore[no-untyped-def]
        """The modes continued over the horizon."""
        if len(state.window) < 3:
            return WeightDelta(state.names, tuple(state.direction), (0.0,) * len(horizons))
        grams = state.tables["gram"].numpy()
        blocks = [h / self.stride for h in horizons]
        rows = [modes(g, n, self.rank) for g, n in zip(grams, blocks, strict=True)]
        moved = combination(torch.from_numpy(np.stack(rows)), state.window[:-1])
        return WeightDelta(state.names, tuple(moved), tuple(float(h > 0) for h in horizons))


@dataclass(frozen=True, kw_only=True)
class AndersonPredictor(LabPredictor):
    r"""Forecast towards the regularised Anderson extrapolation of the last W base weights.

    .. math:: c = \arg\min_{\sum c = 1} \Bigl\|\sum_i c_i r_i\Bigr\|^2
        + \lambda \|R\|^2 \|c\|^2, \qquad
        \hat\Delta = \frac{h}{W s} \Bigl(\sum_i c_i \theta_{i+1} - \theta_W\Bigr)

    with :math:`r_i = \theta_{i+1} - \theta_i` over s full steps, forecasts included. The limit is
    thus approached as if it lay W blocks ahead. Under noise c tends to equal weights, whose
    extrapolation is the average of the window.

    Args:
        size: W, at least 2.
        stride: s, at least 1.
        damping: :math:`\lambda`, relative.

    References:
        Scieur, d'Aspremont and Bach, Regularized nonlinear acceleration (2016).
    """

    size: int = 8
    stride: int = 4
    damping: float = 1e-2

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Add the displacement to the block under way; extrapolate when it is full."""
        if gathered(state, observed, backend, self.stride):
            remember(state, backend, self.size)
            grams = products(state.window, state.window).numpy()
            # Weights before the newest differ from it by the blocks in between.
            rows = np.stack([weights_of_extrapolation(g, self.damping) for g in grams])
            behind = np.cumsum(rows, axis=1) - rows
            state.tables["behind"] = torch.from_numpy(behind)
            state.direction = combination(-state.tables["behind"], state.window)

    def forecast(self, state, horizons, *, closed_loop=True):  # type: ignore[no-untyped-def]
        """The way to the extrapolation, in shares of the window's length."""
        factors = tuple(h / (self.size * self.stride) for h in horizons)
        return WeightDelta(state.names, tuple(state.direction), factors)


@dataclass(frozen=True, kw_only=True)
class NowcastPredictor(LabPredictor):
    r"""Forecast by a small network over each weight's recent displacements, trained on this run.

    .. math:: \hat y = w^\top x + v^\top \tanh(A x + b), \qquad
        x = (d_{W}, \dots, d_{W-n+1}) / \sigma, \qquad \hat\Delta = h \, \sigma \hat y / s

    with d block displacements over s full steps and :math:`\sigma` the root mean square of the
    tensor's newest one. One network for all tensors; after every block it takes a few Adam steps on
    a sample of weights whose next block has just become known.

    Args:
        history: n, blocks that the network sees.
        stride: s, at least 1.
        width: Hidden units.
        sample: Weights per tensor and training.
        updates: Adam steps per training.
        rate: Their learning rate.

    References:
        Jang et al., Weight nowcasting network, ICML (2023); Sinha et al., Introspection (2017).
    """

    history: int = 5
    stride: int = 4
    width: int = 16
    sample: int = 1024
    updates: int = 20
    rate: float = 3e-3

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> LabState:
        """A network that forecasts nothing."""
        state = super().init(names, like, backend)
        generator = torch.Generator().manual_seed(0)
        n, width = self.history, self.width
        tables = {"w": torch.zeros(n), "v": torch.zeros(width), "b": torch.zeros(width)}
        tables["A"] = torch.randn(n, width, generator=generator) / n**0.5
        moments = {f"{m}.{k}": torch.zeros_like(x) for k, x in tables.items() for m in ("m", "s")}
        state.tables = {**tables, **moments}
        return state

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Add the update to the block under way; train and forecast anew when it is full."""
        update = own_update(observed, applied)
        if not gathered(state, update, backend, self.stride):
            return
        remember(state, backend, self.history + 1)
        if len(state.window) > self.history:
            self._train(state)
            for k, x in enumerate(state.direction):
                inputs, scale = self._inputs(state, k, state.window[1:])
                found = _network(state.tables, inputs) * scale / self.stride
                x.copy_(found.reshape(x.shape))

    def _inputs(self, state: LabState, k: int, blocks: list[Any]) -> tuple[Tensor, Tensor]:
        """Histories of all entries of a tensor, shape (entries, n), newest first, and the scale."""
        stack = torch.stack([x[k].reshape(-1) for x in reversed(blocks)], dim=1).float().cpu()
        scale = stack[:, 0].square().mean().sqrt().clamp_min(1e-12)
        return stack / scale, scale

    def _train(self, state: LabState) -> None:
        """Adam steps on entries drawn by the count, so that no random state has to be kept."""
        generator = torch.Generator().manual_seed(state.count)
        pairs = []
        for k in range(len(state.names)):
            inputs, scale = self._inputs(state, k, state.window[:-1])
            rows = torch.randint(len(inputs), (self.sample,), generator=generator)
            target = state.window[-1][k].reshape(-1).float().cpu() / scale
            pairs.append((inputs[rows], target[rows]))
        inputs, targets = (torch.cat(part) for part in zip(*pairs, strict=True))
        tables, trained = state.tables, state.count // self.stride - self.history - 1
        for k in range(self.updates):
            slopes = _slopes(tables, inputs, targets)
            time = trained * self.updates + k + 1
            for name, g in slopes.items():
                mean, square = tables[f"m.{name}"], tables[f"s.{name}"]
                mean.lerp_(g, 0.1)
                square.lerp_(g * g, 0.01)
                root = (square / (1 - 0.99**time)).sqrt() + 1e-8
                tables[name] -= self.rate * mean / (1 - 0.9**time) / root

    def forecast(self, state, horizons, *, closed_loop=True):  # type: ignore[no-untyped-def]
        """The network's mean update, times the horizon."""
        return WeightDelta(state.names, tuple(state.direction), tuple(horizons))


def _network(tables: dict[str, Tensor], inputs: Tensor) -> Tensor:
    return inputs @ tables["w"] + torch.tanh(inputs @ tables["A"] + tables["b"]) @ tables["v"]


def _slopes(tables: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Gradients of half the mean squared error; targets far out count as if at 5."""
    hidden = torch.tanh(inputs @ tables["A"] + tables["b"])
    error = inputs @ tables["w"] + hidden @ tables["v"] - targets.clamp(-5, 5)
    error = error / len(targets)
    back = error[:, None] * tables["v"] * (1 - hidden.square())
    return {"w": inputs.T @ error, "v": hidden.T @ error, "A": inputs.T @ back, "b": back.sum(0)}
