"""Placebo forecasts: as long as the real ones, in directions that mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from hybrid_predict.forecast.predictors import MomentumPredictor, Predictor
from hybrid_predict.tensors.lists import upcast


@dataclass(frozen=True, kw_only=True)
class _Wrapped(Predictor):
    """A predictor with the forecasts of ``inner``, in directions that subclasses change."""

    inner: Predictor = field(default_factory=MomentumPredictor)

    @property
    def multiple(self) -> float:
        return self.inner.multiple


@final
@dataclass(frozen=True, kw_only=True)
class RandomForecast(_Wrapped):
    r"""Forecasts with the length of another predictor, in a random direction per tensor.

    .. math:: \hat d = \|d\| \, \frac{r}{\|r\|}, \qquad r \sim \mathcal N(0, I)

    A direction lasts for ``hold`` displacements, at least 1. It depends only on ``seed``, at least
    0, and on the number of displacements, so a resumed run makes the same forecasts.
    """

    seed: int = 0
    hold: int = 16

    def directions(self, drift: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        mixed = np.random.SeedSequence([self.seed, count // self.hold])
        seed = int(mixed.generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(seed)
        return [_as_long(torch.randn(d.shape, generator=generator).to(d), d) for d in drift]


@final
@dataclass(frozen=True, kw_only=True)
class NegatedForecast(_Wrapped):
    """Forecasts the opposite of another predictor."""

    def directions(self, drift: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [-d for d in drift]


@final
@dataclass(frozen=True, kw_only=True)
class ShuffledForecast(_Wrapped):
    r"""Forecasts each tensor's length with the direction of the next tensor.

    .. math:: \hat d_k = \|d_k\| \, \frac{R(d_{k+1})}{\|R(d_{k+1})\|}

    with R the entries of a tensor, from its middle on, in the shape of another tensor.
    """

    def directions(self, drift: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return list(map(_read_as, drift, [*drift[1:], drift[0]]))


PLACEBOS: dict[str, type[_Wrapped]] = {
    "random": RandomForecast,
    "negated": NegatedForecast,
    "shuffled": ShuffledForecast,
}


def _read_as(direction: Tensor, other: Tensor) -> Tensor:
    entries = upcast(other).flatten().roll(other.numel() // 2)
    copies = -(-direction.numel() // max(1, entries.numel()))
    taken = entries.repeat(copies)[: direction.numel()].reshape(direction.shape)
    return _as_long(taken.to(direction.dtype), direction)


def _as_long(direction: Tensor, wanted: Tensor) -> Tensor:
    tiny = torch.finfo(direction.dtype).tiny
    length = torch.linalg.vector_norm(wanted)
    return direction.mul_(length / torch.linalg.vector_norm(direction).clamp_min(tiny))
