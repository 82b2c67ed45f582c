"""A window of full steps: compares a forecast with the displacements that follow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybrid_predict.rules.skill import DRIFT, SAMPLE, Pooled, pool, window_bounds
from hybrid_predict.torch import ranks, shards
from hybrid_predict.torch.deltas import WeightDelta
from hybrid_predict.torch.lists import Counts, widest


@final
class Reading(NamedTuple):
    """Inner products over one closed window of T tensors, per unit of the learning rate.

    The rows of a Gram matrix are the summed displacement, the forecast and, if a length is fitted,
    its direction.
    """

    kind: str
    owner: int  # number of the optimizer
    names: tuple[str, ...]
    steps: int  # number of displacements
    gram: NDArray[np.float64]  # shape (T, 2 or 3, 2 or 3)
    chance: NDArray[np.float64]  # variance of displacement · forecast for its random signs, (T,)
    drift: NDArray[np.float64]  # squared lengths of the drift, (T,)
    late: NDArray[np.float64]  # displacement · forecast of the window before, (T,); 0 without one
    rate: float = 0.0  # mean over the steps of the largest learning rate of the tensors

    @property
    def square(self) -> float:
        """Squared length of the forecast over all tensors."""
        return float(self.gram[:, 1, 1].sum())

    def pooled(self, following: float) -> Pooled:
        """Return sums over all tensors, with the squared length of the next forecast."""
        numbers = pool(self.gram, self.chance, self.drift, self.steps, following)
        return Pooled(*map(float, numbers))

    def packed(self) -> tuple[list[Any], list[float]]:
        """Return the tag and the numbers from which :func:`reading` makes an equal reading."""
        others = np.stack([self.chance, self.drift, self.late], 1)
        rows = np.concatenate([self.gram.reshape(len(self.names), -1), others], 1)
        tag = [self.kind, self.owner, list(self.names), self.steps, self.gram.shape[1]]
        return tag, [*rows.flatten().tolist(), self.rate]


def reading(tag: Sequence[Any], values: Sequence[float]) -> Reading:
    """Make a reading from the flat numbers that :meth:`Window.close` measured.

    The tag is kind, owner, names, number of displacements, and number of rows of a Gram matrix.
    """
    kind, owner, names, steps, size = tag
    numbers = np.asarray(values, dtype=np.float64)
    rows = numbers[:-1].reshape(len(names), -1)
    gram = rows[:, :-3].reshape(-1, size, size)
    chance, drift, late = rows[:, -3:].T
    about = kind, owner, tuple(names), steps
    return Reading(*about, gram, chance, drift, late, float(numbers[-1]))


@final
class Window:
    """Compares forecasts with the displacements that follow, on a fixed sample of entries.

    One window is open at a time: it stores a forecast, sums the displacements that follow, and
    measures their inner products. As one closes, the next one opens, see
    `rules.skill.window_bounds`. The host does not wait for the device. Samples of 64-bit weights
    have 64 bits, all others 32.

    Args:
        length: Number of displacements in a window, at least 8.
        values: The K tensors, as local shards.
        short: Whether the first windows are short, see `rules.skill.window_bounds`.
    """

    def __init__(self, length: int, values: Sequence[Tensor], *, short: bool = False) -> None:
        self.length, self._short = length, short
        self._sizes = [v.numel() for v in values]
        self._places = [_places(v) for v in values]
        self._shares = [n / min(n, SAMPLE) if n else 0.0 for n in self._sizes]
        self._drift = [v.new_zeros(min(v.numel(), SAMPLE), dtype=widest([v])) for v in values]
        self._moved: list[Tensor] = []
        self._frozen: list[list[Tensor]] = []  # the forecast, and what is fitted, if it is
        self._before: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._seen = self._count = 0
        self._rates: float | Tensor = 0.0  # sum over the displacements of the open window

    @property
    def due(self) -> bool:
        """Whether a window is to be opened now, with at least half its displacements to come."""
        begin, end = self._bounds()
        return not self._frozen and begin > 0 and end - self._seen >= (end - begin) // 2

    def _bounds(self) -> tuple[int, int]:
        return window_bounds(self._seen, self.length, short=self._short)

    def held_bytes(self, *, fitted: bool) -> int:
        """Return the memory of all samples while a window is open, in bytes.

        Args:
            fitted: Whether windows are opened with fitted directions.
        """
        return (4 + fitted) * sum(x.nbytes for x in self._drift)

    def open(self, delta: WeightDelta, fitted: Sequence[Tensor]) -> None:
        """Open a window: store a forecast and the fitted directions per unit of learning rate."""
        pairs = zip(self._sampled(delta.directions), delta.factors, strict=True)
        self._frozen = [[factor * direction for direction, factor in pairs]]
        if fitted:
            self._frozen.append([x.clone() for x in self._sampled(fitted)])
        self._squares = [x.square().sum() for x in self._drift]
        self._moved, self._count = [torch.zeros_like(x) for x in self._drift], 0
        self._rates = 0.0

    def add(self, moved: Sequence[Tensor], rate: float | Tensor) -> bool:
        """Add a displacement per unit of the learning rate; return whether the window is full.

        ``rate`` is the largest learning rate of the tensors.
        """
        sampled = self._sampled(moved)
        self._seen += 1
        torch._foreach_lerp_(self._drift, sampled, 1.0 - min(DRIFT, 1.0 - 1.0 / self._seen))
        if not self._frozen:
            return False
        torch._foreach_add_(self._moved, sampled)
        self._count += 1
        self._rates = self._rates + rate
        return self._seen == self._bounds()[0]

    def norms(self) -> list[Tensor]:
        """Return the length of the drift of each local shard, estimated from the sample, 0-dim."""
        norms = zip(torch._foreach_norm(self._drift), self._shares, strict=True)
        return [norm if share == 1.0 else norm * math.sqrt(share) for norm, share in norms]

    def close(self, counts: Counts) -> tuple[int, int, Tensor]:
        """Close a full window.

        Returns:
            Number of displacements, number of rows of a Gram matrix, and the flat inner products
            for :func:`reading`, of at least 32 bits.
        """
        rows, device = [], self._moved[0].device
        befores = self._before or [torch.zeros_like(x) for x in self._moved]
        columns = zip(self._shares, counts or [1.0] * len(self._shares), self._squares, befores,
                      self._moved, *self._frozen, strict=True)  # fmt: skip
        for share, count, drift, before, *sampled in columns:
            each, factor = torch.stack(sampled), share * count**2
            moved, forecast = each[:2]
            chance = (moved * forecast).square().sum() * (share * count) ** 2
            others = torch.stack([chance, drift * factor, (moved * before).sum() * factor])
            rows.append(torch.cat([(each @ each.T).flatten() * factor, others]).to(device))
        mean = self._rates / (self._count * ranks.size())  # sums over the ranks are the mean again
        rows.append(rows[0].new_zeros(1) + mean)
        size, self._before = 1 + len(self._frozen), self._frozen[0]
        self._moved, self._frozen, self._squares = [], [], []
        return self._count, size, torch.cat(rows)

    def inherit(self, other: Window, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the drift of tensors, by positions here and there, unless sharded differently."""
        fitting = [(k, at) for k, at in pairs if self._sizes[k] == other._sizes[at]]
        for k, at in fitting:
            self._drift[k].copy_(other._drift[at])
        if fitting:
            self._seen = max(self._seen, other._seen)

    def _sampled(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flat = [t.detach().reshape(-1) for t in tensors]
        columns = zip(flat, self._places, self._drift, strict=True)
        # Indexing with brackets takes four times as long.
        return [
            (x if at is None else x.index_select(0, at)).to(drift.dtype) for x, at, drift in columns
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples of this rank."""
        return {
            "length": self.length,
            "ranks": ranks.size(),
            "sizes": list(self._sizes),
            "seen": self._seen,
            "count": self._count,
            "rates": self._rates,
            "drift": self._drift,
            "moved": self._moved,
            "frozen": self._frozen,
            "before": self._before,
            "squares": self._squares,
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Return whether a saved state has samples of tensors that are sharded as these."""
        return list(state["sizes"]) == self._sizes

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`."""

        def own(samples: Sequence[Tensor]) -> list[Tensor]:
            pairs = zip(samples, self._drift, strict=True) if samples else ()
            return [x.to(y).clone() for x, y in pairs]

        self.length = state["length"]
        self._seen = state["seen"]
        self._count = state["count"]
        self._rates = float(state["rates"])
        self._frozen = [own(x) for x in state["frozen"]]
        self._moved = own(state["moved"])
        self._squares = own(state["squares"])
        self._before = own(state["before"])
        self._drift = own(state["drift"])

    def load_of(self, windows: Sequence[dict[str, Any]], tensors: Sequence[Tensor]) -> None:
        """Load this rank's window, of all ranks or alone; begin anew if otherwise sharded now."""
        several = len(windows) > 1
        alike = all(window["ranks"] == ranks.size() for window in windows)
        saved = windows[ranks.rank() if alike and several else 0]
        if several and alike:
            alike = all(ranks.gather(self.fits(saved)))
        if not alike and (several or any(map(shards.is_sharded, tensors))):
            saved = Window(self.length, list(map(shards.local, tensors))).state_dict()
        self.load_state_dict(saved)


def _places(value: Tensor) -> Tensor | None:
    """Return the positions of the sampled entries, None for all, without global random state."""
    if value.numel() <= SAMPLE:
        return None
    generator = torch.Generator().manual_seed(value.numel())
    return torch.randint(value.numel(), (SAMPLE,), generator=generator).to(value.device)
