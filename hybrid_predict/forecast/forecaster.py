"""Forecasts the tensors of a group, and compares forecasts with the displacements that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.config import check_history
from hybrid_predict.forecast.predictors import Predictor
from hybrid_predict.policy.confidence import SAMPLE, Window, window_bounds
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.shards import Counts
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta

_SAMPLES = ("moved", "forecast", "before", "drift")


@final
class Forecaster:
    """Learns how the tensors of a group move, and forecasts it.

    One window of full steps is open at a time: it keeps a forecast, and sums the displacements that
    follow, on a fixed sample of entries. As one closes, the next one opens. The host does not wait
    for the device. Samples of 64-bit weights have 64 bits, all others 32.

    Averages are stored as ``history``. A ``window`` has so many displacements, at least 8; whether
    the first ones are ``short``, see `policy.confidence.window_bounds`.
    """

    def __init__(
        self,
        predictor: Predictor,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        history: str,
        window: int,
        *,
        short: bool,
    ) -> None:
        values = [shards.local(p) for p in parameters]
        self._predictor = predictor
        self._names = tuple(names)
        check_history(predictor.decay, history)
        self.drift = lists.zeros(values, history)
        self.count = 0  # displacements in the drift
        self._length = window
        self._short = short
        self._sizes = [v.numel() for v in values]
        self._types = [lists.widest([v]) for v in values]
        self._places = [_places(v) for v in values]
        self._begin()

    def _begin(self) -> None:
        self._seen = 0  # displacements since windows began
        self._count = 0  # those of the open window
        self._rates: float | Tensor = 0.0  # the sum of their learning rates
        # The last forecast, and of the open window the forecast, the sum of what has moved since,
        # and squared lengths of the drift where it begins:
        self._samples: dict[str, list[Tensor]] = {name: [] for name in _SAMPLES}

    @property
    def held(self) -> list[Tensor]:
        """Tensors that are kept between full steps."""
        return [x for each in (self.drift, *self._samples.values()) for x in each]

    def learn(
        self,
        moved: Sequence[Tensor],
        rate: float,
        frozen: Sequence[Tensor | None],
        counts: Counts,
    ) -> list[tuple[Callable[..., Window], Tensor]]:
        """Learn from displacements per unit of the learning rate, which may be overwritten.

        ``rate`` is the largest one, and ``frozen`` masks entries that are frozen now. With
        ``counts`` as factors every entry counts once over the ranks. Return a window that has
        closed, if any, as a function of numbers; and these numbers on this rank, a tensor of at
        least 32 bits, which add up over the ranks.
        """
        self._seen += 1
        closed = []
        if self._samples["forecast"]:
            torch._foreach_add_(self._samples["moved"], self._sampled(moved))
            self._count += 1
            self._rates = self._rates + rate
            closed = [self._close(counts)] if self._seen == self._bounds()[0] else []
        self.count += 1
        lists.average(self.drift, moved, min(self._predictor.decay, 1.0 - 1.0 / self.count))
        # Otherwise forecasts would continue to move entries that are frozen now.
        lists.clear(self.drift, frozen)
        begin, end = self._bounds()
        # At least half of the displacements have to be still to come.
        if not self._samples["forecast"] and begin and end - self._seen >= (end - begin) // 2:
            self._open()
        return closed

    def _bounds(self) -> tuple[int, int]:
        return window_bounds(self._seen, self._length, short=self._short)

    def _open(self) -> None:
        """Open a window with a forecast for a learning rate of 1."""
        directions = self._sampled(self._predictor.directions(self.drift, self.count))
        forecast = torch._foreach_mul(directions, self._predictor.multiple)
        self._samples["forecast"] = list(forecast)
        self._samples["moved"] = [torch.zeros_like(x) for x in forecast]
        self._samples["drift"] = [x.square().sum() for x in self._sampled(self.drift)]
        self._count = 0
        self._rates = 0.0

    def _close(self, counts: Counts) -> tuple[Callable[..., Window], Tensor]:
        steps = self._count
        moved, forecast, before, drift = (self._samples[name] for name in _SAMPLES)
        device = moved[0].device
        means = torch._foreach_div(moved, steps)
        products = torch._foreach_mul(means, forecast)
        shares = [n / min(n, SAMPLE) if n else 0.0 for n in self._sizes]
        rows = [
            torch.stack([product.sum().to(device) for product in products]),
            lists.norms(means).square(),
            lists.norms(forecast).square(),
            torch.stack([x.to(device) for x in drift]),
            lists.scaled(lists.norms(products).square(), shares),
            lists.dots(means, before) if before else torch.zeros(len(means)),
        ]
        pairs = zip(shares, counts or [1.0] * len(shares), strict=True)
        factors = [share * count**2 for share, count in pairs]
        sums = torch.stack([lists.scaled(row.to(device), factors).sum() for row in rows])
        rate = sums.new_zeros(1) + self._rates / (steps * processes.size())  # their sum is the mean
        self._samples = {"moved": [], "forecast": [], "before": forecast, "drift": []}
        return partial(Window, steps), torch.cat([sums, rate])

    def _sampled(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(tensors, self._places, strict=True)
        # Indexing with brackets takes four times as long.
        found = [x if at is None else x.reshape(-1).index_select(0, at) for x, at in pairs]
        if [x.dtype for x in found] == self._types:
            return found
        return [x.to(kind) for x, kind in zip(found, self._types, strict=True)]

    def slopes(
        self,
        movement: WeightDelta,
        average: Sequence[Tensor],
        moved: Sequence[Tensor],
        rates: Sequence[float],
        counts: Counts,
    ) -> list[Tensor]:
        """Return `policy.verdict.Slopes` over these tensors, if the movement concerns them.

        ``moved`` are displacements per unit of the learning rate. The numbers, of shape (4,), stay
        on the device, add up over the ranks, and are zeros where nothing was predicted.
        """
        own = movement.of(self._names)
        if not own.names:
            return []
        rows = []
        counted = counts or [1.0] * len(average)
        for vectors, factors in ((own.directions, own.factors), (moved, rates)):
            pairs = list(zip(factors, counted, strict=True))
            dots = lists.scaled(lists.dots(average, vectors), [f * count**2 for f, count in pairs])
            norms = lists.scaled(lists.norms(vectors), [f * count for f, count in pairs])
            rows += [dots.sum(), norms.square().sum()]
        numbers = torch.stack(rows)
        return [torch.where(numbers[1] > 0, numbers, torch.zeros_like(numbers))]

    def forecast(self, rates: Sequence[float]) -> tuple[WeightDelta, list[Tensor]]:
        """Forecast the movement of one predicted step, by the learning rate of each parameter.

        With it comes the length of the drift of each tensor at these rates, 0-dim.
        """
        directions = self._predictor.directions(self.drift, self.count)
        factors = tuple(self._predictor.multiple * rate for rate in rates)
        lengths = lists.scaled(lists.norms(self.drift), [*map(abs, rates)])
        return WeightDelta(self._names, tuple(directions), factors), list(lengths)

    def inherit(self, other: Forecaster, pairs: Sequence[tuple[int, int]]) -> None:
        """Go on counting where tensors of another group stand, by positions here and there."""
        if pairs:
            self.count = other.count
        if any(self._sizes[k] == other._sizes[at] for k, at in pairs):
            self._seen = max(self._seen, other._seen)

    def state_dict(self) -> dict[str, Any]:
        """Return what is saved besides arrays: counts, and samples of this rank on the host."""
        window = {
            "length": self._length,
            "seen": self._seen,
            "count": self._count,
            "rates": self._rates,
            **{name: [x.cpu() for x in values] for name, values in self._samples.items()},
        }
        return {"count": self.count, "window": window}

    def load_state_dict(
        self, count: int, windows: Sequence[dict[str, Any]], parameters: Sequence[Tensor]
    ) -> None:
        """Load counts, and this rank's window of those of all ranks or of any one.

        Windows begin anew if there are none, or as many as there were other ranks.
        """
        self.count = count
        self._begin()
        if len(windows) not in (1, processes.size()):
            return
        saved = windows[processes.rank() if len(windows) > 1 else 0]
        self._length = saved["length"]
        self._seen = saved["seen"]
        self._count = saved["count"]
        self._rates = float(saved["rates"])
        devices = [shards.local(p).device for p in parameters]
        for name in [name for name in _SAMPLES if saved[name]]:
            columns = zip(saved[name], devices, self._types, strict=True)
            self._samples[name] = [x.to(device, kind, copy=True) for x, device, kind in columns]


def _places(value: Tensor) -> Tensor | None:
    """Return the positions of the sampled entries, None for all, without global random state."""
    if value.numel() <= SAMPLE:
        return None
    generator = torch.Generator().manual_seed(value.numel())
    return torch.randint(value.numel(), (SAMPLE,), generator=generator).to(value.device)
