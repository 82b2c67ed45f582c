"""A window of full steps: compares a forecast with the displacements that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.policy.confidence import SAMPLE, window_bounds
from hybrid_predict.ranks import processes
from hybrid_predict.ranks.sums import Counts
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta
from hybrid_predict.tensors.lists import widest


@final
class Window:
    """Compares forecasts with the displacements that follow, on a fixed sample of entries.

    One window is open at a time: it stores a forecast, sums the displacements that follow, and
    measures their inner products. As one closes, the next one opens, see
    `policy.confidence.window_bounds`. The host does not wait for the device. Samples of 64-bit
    weights have 64 bits, all others 32.

    Args:
        length: Number of displacements in a window, at least 8.
        values: The K tensors, as local shards.
        short: Whether the first windows are short, see `policy.confidence.window_bounds`.
    """

    def __init__(self, length: int, values: Sequence[Tensor], *, short: bool = False) -> None:
        self.length = length
        self._short = short
        self._shapes = [list(v.shape) for v in values]
        self._sizes = [v.numel() for v in values]
        self._types = [widest([v]) for v in values]
        self._places = [_places(v) for v in values]
        self._whole = all(at is None for at in self._places)
        self._shares = [n / min(n, SAMPLE) if n else 0.0 for n in self._sizes]
        self._moved: list[Tensor] = []
        self._forecast: list[Tensor] = []
        self._before: list[Tensor] = []
        self._drift: list[Tensor] = []  # squared lengths of the drift where the window begins
        self._seen = 0
        self._count = 0
        self._rates = 0.0  # sum over the displacements of the open window

    @property
    def due(self) -> bool:
        """Whether a window is to be opened now, with at least half its displacements to come."""
        begin, end = self._bounds()
        return not self._forecast and begin > 0 and end - self._seen >= (end - begin) // 2

    def _bounds(self) -> tuple[int, int]:
        return window_bounds(self._seen, self.length, short=self._short)

    @property
    def held_bytes(self) -> int:
        """Memory of all samples while a window is open, in bytes."""
        sizes = zip(self._sizes, self._types, strict=True)
        return 3 * sum(min(n, SAMPLE) * kind.itemsize for n, kind in sizes)

    def open(self, forecast: WeightDelta, drift: Sequence[Tensor]) -> None:
        """Open a window.

        Args:
            forecast: A forecast for a learning rate of 1.
            drift: The drift, or the forecast where there is none.
        """
        pairs = zip(self._sampled(forecast.directions), forecast.factors, strict=True)
        self._forecast = [factor * direction for direction, factor in pairs]
        self._drift = [x.square().sum() for x in self._sampled(drift)]
        self._moved = [torch.zeros_like(x) for x in self._forecast]
        self._count = 0
        self._rates = 0.0

    def add(self, moved: Sequence[Tensor], rate: float) -> bool:
        """Add a displacement per unit of the learning rate; return whether the window is full.

        ``rate`` is the largest learning rate of the tensors.
        """
        self._seen += 1
        if not self._forecast:
            return False
        torch._foreach_add_(self._moved, self._sampled(moved))
        self._count += 1
        self._rates = self._rates + rate
        return self._seen == self._bounds()[0]

    def close(self, counts: Counts) -> tuple[int, Tensor]:
        """Close a full window.

        Returns:
            Number of displacements, and the other fields of `policy.confidence.Window` as a tensor
            of at least 32 bits, on this rank; they add up over the ranks.
        """
        steps = self._count
        device = self._moved[0].device
        means = torch._foreach_div(self._moved, steps)
        products = torch._foreach_mul(means, self._forecast)
        late = lists.dots(means, self._before) if self._before else torch.zeros(len(means))
        rows = [
            torch.stack([product.sum().to(device) for product in products]),
            lists.norms(means).square(),
            lists.norms(self._forecast).square(),
            torch.stack([x.to(device) for x in self._drift]),
            lists.scaled(lists.norms(products).square(), self._shares),
            late,
        ]
        pairs = zip(self._shares, counts or [1.0] * len(self._shares), strict=True)
        factors = [share * count**2 for share, count in pairs]
        sums = torch.stack([lists.scaled(row.to(device), factors).sum() for row in rows])
        rate = sums.new_zeros(1) + self._rates / (steps * processes.size())  # their sum is the mean
        self._before = self._forecast
        self._forecast = []
        self._moved = []
        self._drift = []
        return steps, torch.cat([sums, rate])

    def inherit(self, other: Window, pairs: Sequence[tuple[int, int]]) -> None:
        """Go on counting where the window of tensors stands that were in another group."""
        if any(self._sizes[k] == other._sizes[at] for k, at in pairs):
            self._seen = max(self._seen, other._seen)

    def _sampled(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if self._whole and [x.dtype for x in tensors] == self._types:
            return list(tensors)
        columns = zip(tensors, self._places, self._types, strict=True)
        return [lists.cast(_entries(x, at), kind) for x, at, kind in columns]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples of this rank."""
        return {
            "length": self.length,
            "ranks": processes.size(),
            "shapes": self._shapes,
            "seen": self._seen,
            "count": self._count,
            "rates": self._rates,
            "moved": self._moved,
            "forecast": self._forecast,
            "before": self._before,
            "drift": self._drift,
        }

    def load_state_dict(self, windows: Sequence[dict[str, Any]], values: Sequence[Tensor]) -> None:
        """Load this rank's window, of all ranks or alone; begin anew if otherwise sharded now.

        Every rank has to call it with a state of several ranks, or of another number of them, as
        all of them begin anew if one does.

        Args:
            windows: Results of :meth:`state_dict`.
            values: The K tensors, as local shards.
        """
        several = len(windows) > 1
        alike = all(window["ranks"] == processes.size() for window in windows)
        saved = windows[processes.rank() if alike and several else 0]
        fits = saved["shapes"] == self._shapes and (alike or not several)
        # A rank that goes back to its own state, after an error, is alone.
        if several or not alike:
            fits = all(processes.gather(fits))
        if not fits:
            saved = Window(self.length, values).state_dict()

        def own(samples: Sequence[Tensor]) -> list[Tensor]:
            columns = zip(samples, values, self._types, strict=True) if samples else ()
            return [x.to(value.device, kind, copy=True) for x, value, kind in columns]

        self.length = saved["length"]
        self._seen = saved["seen"]
        self._count = saved["count"]
        self._rates = saved["rates"]
        self._moved = own(saved["moved"])
        self._forecast = own(saved["forecast"])
        self._before = own(saved["before"])
        self._drift = own(saved["drift"])


def _entries(tensor: Tensor, places: Tensor | None) -> Tensor:
    """Return the entries at places, or all of them."""
    # Indexing with brackets takes four times as long.
    return tensor if places is None else tensor.reshape(-1).index_select(0, places)


def _places(value: Tensor) -> Tensor | None:
    """Return the positions of the sampled entries, None for all, without global random state."""
    if value.numel() <= SAMPLE:
        return None
    generator = torch.Generator().manual_seed(value.numel())
    return torch.randint(value.numel(), (SAMPLE,), generator=generator).to(value.device)
