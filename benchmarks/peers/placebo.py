"""Forecasts with the right length and the wrong direction, to test whether direction matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import AbstractPredictor, MomentumPredictor, PredictorState
from hybrid_predict.model.deltas import WeightDelta
from hybrid_predict.tensors import AbstractBackend


@dataclass(frozen=True, kw_only=True)
class _Redirected(AbstractPredictor):
    """A predictor that forecasts as far as another would, but elsewhere. Torch tensors only.

    Args:
        inner: Gives the lengths and keeps the history.
        gated: Whether predicted steps need skill.
    """

    inner: AbstractPredictor = field(default_factory=MomentumPredictor)
    gated: bool = True

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An empty history of ``inner``."""
        return self.inner.init(names, like, backend)

    def observe(
        self, state: PredictorState, displacement: Sequence[Any], backend: AbstractBackend[Any]
    ) -> None:
        """Add one displacement to the history of ``inner``."""
        self.inner.observe(state, displacement, backend)


@dataclass(frozen=True, kw_only=True)
class RandomForecast(_Redirected):
    r"""Forecast as far as another predictor, each tensor in a random direction.

    .. math:: \hat d = \|d\| \, \frac{r}{\|r\|}, \qquad r \sim \mathcal N(0, I)

    The direction is held for ``hold`` displacements. It follows from the seed and the number of
    displacements alone, so that forecasts are pure and a resumed run makes the same ones.

    Args:
        inner: Gives the lengths and keeps the history.
        gated: Whether predicted steps need skill.
        seed: Of the random directions, at least 0.
        hold: Displacements between two directions, at least 1.

    Raises:
        ConfigError: If ``seed`` or ``hold`` is out of range.
    """

    seed: int = 0
    hold: int = 16

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("hold", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(name, f"an integer, at least {least}", value)

    def forecast(self, state: PredictorState, rates: Sequence[Any]) -> WeightDelta:
        """The forecast of ``inner``, turned at random."""
        delta = self.inner.forecast(state, rates)
        entropy = [self.seed, state.count // self.hold]
        mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        generators = {
            device: torch.Generator(device).manual_seed(int(mixed[0]))
            for device in {d.device for d in delta.directions}
        }
        turned = tuple(_turned(d, generators[d.device]) for d in delta.directions)
        return WeightDelta(delta.names, turned, delta.factors)


@dataclass(frozen=True, kw_only=True)
class NegatedForecast(_Redirected):
    r"""Forecast the opposite of another predictor, :math:`-d` in place of d.

    Args:
        inner: Gives the forecasts and keeps the history.
        gated: Whether predicted steps need skill.
    """

    def forecast(self, state: PredictorState, rates: Sequence[Any]) -> WeightDelta:
        """The forecast of ``inner``, backwards."""
        return self.inner.forecast(state, rates).scaled(-1.0)


def _turned(direction: Tensor, generator: torch.Generator) -> Tensor:
    random = torch.empty_like(direction).normal_(generator=generator)
    tiny = torch.finfo(direction.dtype).tiny
    length = torch.linalg.vector_norm(direction)
    return random.mul_(length / torch.linalg.vector_norm(random).clamp_min(tiny))
