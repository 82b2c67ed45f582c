"""A window of full steps: compares a forecast with the displacements that follow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybrid_predict.accounts.saved import check_count, damaged
from hybrid_predict.tensors.torch import widest
from hybrid_predict.torch.deltas import WeightDelta

SAMPLE = 65_536
"""Largest number of entries of a tensor that are compared; they stay the same during a run."""

SHORTEST = 20
"""Smallest number of displacements in a window."""

DRIFT = 0.95
"""Decay of the drift that is the unit of a forecast's length."""

_MOVED, _FORECAST, _FITTED = range(3)


def window_length(momentum: float) -> int:
    r"""Return K, the number of displacements in a window.

    .. math:: K = \max (20, \lceil 2 / (1 - \beta_1) \rceil)

    Args:
        momentum: :math:`\beta_1` of the optimizer, in [0, 1).
    """
    return max(SHORTEST, math.ceil(2 / (1 - momentum) - 1e-9))


@final
@dataclass(frozen=True)
class Reading:
    r"""Inner products measured over one closed window, per tensor.

    Args:
        kind: Kind of the tensors.
        owner: Number of their optimizer.
        names: Names of the T tensors.
        steps: Number of displacements in the window.
        gram: Inner products of summed displacement, forecast and fitted directions, in this order,
            shape (T, 2 + J, 2 + J), per unit of the learning rate.
        chance: Variance of the product of forecast and displacement for random signs of its
            entries, shape (T,).
        drift: Squared lengths of the drift, shape (T,).
    """

    kind: str
    owner: int
    names: tuple[str, ...]
    steps: int
    gram: NDArray[np.float64]
    chance: NDArray[np.float64]
    drift: NDArray[np.float64]

    @property
    def square(self) -> float:
        """Squared length of the forecast over all tensors."""
        return float(self.gram[:, _FORECAST, _FORECAST].sum())

    @property
    def finite(self) -> bool:
        """Whether all inner products are finite."""
        return bool(np.isfinite(self.gram).all())

    @property
    def directions(self) -> NDArray[np.float64]:
        """Gram matrices of the fitted directions, shape (T, J, J)."""
        return self.gram[:, _FITTED:, _FITTED:]

    @property
    def targets(self) -> NDArray[np.float64]:
        """Inner products of the fitted directions with the mean displacement, shape (T, J)."""
        return self.gram[:, _MOVED, _FITTED:] / self.steps

    def packed(self) -> tuple[list[Any], list[float]]:
        """Return the tag and the numbers from which :func:`reading` makes an equal reading."""
        fitted, rows = self.gram.shape[1] - _FITTED, self.gram.reshape(len(self.names), -1)
        rows = np.concatenate([rows, self.chance[:, None], self.drift[:, None]], 1)
        tag = [self.kind, self.owner, list(self.names), self.steps, fitted]
        return tag, rows.flatten().tolist()

    def pooled(self) -> NDArray[np.float64]:
        """Sum over all tensors, of displacements as a mean over the window.

        Returns:
            Product of forecast and displacement, squares of displacement, forecast and drift, and
            the variance of the product for random signs, shape (5,).
        """
        total, steps = self.gram.sum(0), self.steps
        dot, moved = total[_MOVED, _FORECAST] / steps, total[_MOVED, _MOVED] / steps**2
        chance = self.chance.sum() / steps**2
        return np.array([dot, moved, self.square, self.drift.sum(), chance])


def reading(tag: Sequence[Any], values: Sequence[float]) -> Reading:
    """Make a reading from the numbers that :meth:`Window.close` measured.

    Args:
        tag: Kind, owner, names, number of displacements and number J of fitted directions.
        values: The flat numbers.

    Raises:
        CheckpointError: If the numbers do not fit the tag.
    """
    kind, owner, names, steps, fitted = tag
    if not all(isinstance(name, str) for name in (kind, *names)):
        raise damaged("names of tensors", [kind, *names])
    check_count("steps of a window", steps, 1)
    size = _FITTED + check_count("fitted directions", fitted)
    numbers = np.asarray(values, dtype=np.float64)
    expected = len(names) * (size * size + 2)
    if numbers.size != expected:
        raise damaged(f"{expected} numbers of a window", numbers.size)
    rows = numbers.reshape(len(names), -1)
    gram = rows[:, :-2].reshape(-1, size, size)
    return Reading(kind, owner, tuple(names), steps, gram, rows[:, -2], rows[:, -1])


@final
class Window:
    """Compares forecasts with the displacements that follow, on a fixed sample of entries.

    One window is open at a time: it stores a forecast, sums the displacements that follow, and
    measures their inner products. A window closes after every ``length`` displacements, and the
    next one opens. The first one opens after half as many: before that the drift averages too few
    displacements to be foreseen from, and would say little of the later ones.

    The host does not wait for the device. Memory per tensor: 3 + J arrays of at most ``SAMPLE``
    numbers, for drift, displacement, forecast and the J fitted directions; of 64 bits beside
    weights of 64 bits, else of 32.

    Args:
        length: Number of displacements in a window, at least 2; the first has half as many.
        values: The K tensors, as local shards.
    """

    def __init__(self, length: int, values: Sequence[Tensor]) -> None:
        self.length = length
        self._places = [_places(v) for v in values]
        self._shares = [v.numel() / min(v.numel(), SAMPLE) if v.numel() else 0.0 for v in values]
        self._types = [widest([v]) for v in values]
        self._drift = [torch.zeros_like(x) for x in self._sampled(values)]
        self._moved: list[Tensor] = []
        self._frozen: list[list[Tensor]] = []
        self._squares: list[Tensor] = []
        self._seen = self.count = 0

    @property
    def idle(self) -> bool:
        """Whether no window is open."""
        return not self._frozen

    @property
    def due(self) -> bool:
        """Whether a window is to be opened now."""
        return self.idle and self._seen >= self.length // 2

    @property
    def held_bytes(self) -> int:
        """Memory of drift, displacement and forecast, in bytes."""
        return 3 * sum(x.nbytes for x in self._drift)

    def open(self, delta: WeightDelta, directions: Sequence[Sequence[Tensor]]) -> None:
        """Open a window: store a forecast and the fitted directions per unit of learning rate."""
        pairs = zip(self._sampled(delta.directions), delta.factors, strict=True)
        forecast = [factor * direction for direction, factor in pairs]
        fitted = [[x.clone() for x in self._sampled(each)] for each in directions]
        self._frozen, self._squares = [forecast, *fitted], [x.square().sum() for x in self._drift]
        self._moved, self.count = [torch.zeros_like(x) for x in self._drift], 0

    def add(self, moved: Sequence[Tensor]) -> bool:
        """Add a displacement per unit of the learning rate.

        Returns:
            Whether the window is full.
        """
        sampled = self._sampled(moved)
        self._seen += 1
        torch._foreach_lerp_(self._drift, sampled, 1.0 - min(DRIFT, 1.0 - 1.0 / self._seen))
        if self.idle:
            return False
        torch._foreach_add_(self._moved, sampled)
        self.count += 1
        return self._seen % self.length == 0

    def norms(self) -> list[Tensor]:
        """Return the length of the drift of each local shard, estimated from the sample, 0-dim."""
        norms = zip(torch._foreach_norm(self._drift), self._shares, strict=True)
        return [norm * math.sqrt(share) for norm, share in norms]

    def close(self, roots: Sequence[float] | None) -> Tensor:
        """Close a full window and return its inner products, for :func:`reading`.

        Args:
            roots: Factors from ``shards.norm_factors``, with which every element counts once over
                the ranks.

        Returns:
            A flat tensor of at least 32 bits.
        """
        rows, device = [], self._moved[0].device
        columns = zip(self._shares, roots or [1.0] * len(self._shares), self._squares,
                      self._moved, *self._frozen, strict=True)  # fmt: skip
        for share, root, drift, *sampled in columns:
            each = torch.stack(sampled)
            gram = (each @ each.T).flatten() * (share * root**2)
            chance = (each[_MOVED] * each[_FORECAST]).square().sum() * (share * root) ** 2
            others = torch.stack([chance, drift * (share * root**2)])
            rows.append(torch.cat([gram, others]).to(device))
        self._moved, self._frozen, self._squares = [], [], []
        return torch.cat(rows)

    def _sampled(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flat = [t.detach().reshape(-1) for t in tensors]
        columns = zip(flat, self._places, self._types, strict=True)
        return [(x if at is None else x[at]).to(kind) for x, at, kind in columns]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples of this rank."""
        return {
            "length": self.length,
            "seen": self._seen,
            "count": self.count,
            "drift": self._drift,
            "moved": self._moved,
            "frozen": self._frozen,
            "squares": self._squares,
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether a saved state has samples of these tensors."""
        shapes = [x.shape for x in self._drift]
        lists = [state["drift"], *state["frozen"], *([state["moved"]] if state["frozen"] else [])]
        squares = [x.shape for x in state["squares"]] if state["frozen"] else []
        whole = all(shape == () for shape in squares)
        return whole and all([x.shape for x in found] == shapes for found in lists)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`.

        Raises:
            CheckpointError: If an array is missing or has another shape.
        """
        if not self.fits(state):
            raise damaged("samples of these tensors", "others")
        like = self._drift

        def own(found: Sequence[Tensor]) -> list[Tensor]:
            return [x.to(y).clone() for x, y in zip(found, like, strict=True)]

        self.length = check_count("length", state["length"], 1)
        self._seen, self.count = (
            check_count("seen", state["seen"]),
            check_count("count", state["count"]),
        )
        self._drift, self._frozen = own(state["drift"]), [own(x) for x in state["frozen"]]
        is_open = bool(state["frozen"])
        self._moved = own(state["moved"]) if is_open else []
        self._squares = own(state["squares"]) if is_open else []


def _places(value: Tensor) -> Tensor | None:
    """Positions of the sampled entries, None for all; no user's random generator is used."""
    if value.numel() <= SAMPLE:
        return None
    generator = torch.Generator().manual_seed(value.numel())
    return torch.randint(value.numel(), (SAMPLE,), generator=generator).to(value.device)
