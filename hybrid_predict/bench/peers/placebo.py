"""Forecasts with the right length and the wrong direction, to test whether direction matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybrid_predict.backends import AbstractBackend
from hybrid_predict.errors import ConfigError
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.predictors import AbstractPredictor, PredictorState, SpectralPredictor


@dataclass(frozen=True)
class _Redirected(AbstractPredictor):
    """A predictor that forecasts as far as another would, but elsewhere.

    It has the lengths that ``inner`` finds, and whether the optimizer's update is taken back; what
    ``inner`` learns, it learns at the wrong point.
    """

    inner: AbstractPredictor = field(default_factory=SpectralPredictor)

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An empty history of ``inner``."""
        return self.inner.init(names, like, backend)

    @property
    def replaces_update(self) -> bool:  # type: ignore[override]
        """As ``inner`` does."""
        return self.inner.replaces_update

    def observe(
        self,
        state: PredictorState,
        observed: Sequence[Any],
        applied: WeightDelta | None,
        backend: AbstractBackend[Any],
        lengths: Any = None,
    ) -> None:
        """Add one full step to the history of ``inner``."""
        self.inner.observe(state, observed, applied, backend, lengths)


@dataclass(frozen=True)
class RandomForecast(_Redirected):
    r"""Forecast as far as another predictor, each tensor in a random direction.

    .. math:: \hat d = \|d\| \, \frac{r}{\|r\|}, \qquad r \sim \mathcal N(0, I)

    The direction is held for ``hold`` observations. It follows from the seed and the number of
    observations alone, so that forecasts are pure and a resumed run makes the same ones. Torch
    tensors only.

    Args:
        inner: The predictor that gives the lengths and keeps the history.
        seed: Of the random directions, at least 0.
        hold: Observations between two directions, at least 1.

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

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The forecast of ``inner``, turned at random."""
        delta = self.inner.forecast(state, horizons, closed_loop=closed_loop)
        entropy = [self.seed, state.count // self.hold]
        mixed = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        generators = {
            device: torch.Generator(device).manual_seed(int(mixed[0]))
            for device in {d.device for d in delta.directions}
        }
        turned = tuple(_turned(d, generators[d.device]) for d in delta.directions)
        return WeightDelta(delta.names, turned, delta.factors)


@dataclass(frozen=True)
class NegatedForecast(_Redirected):
    r"""Forecast the opposite of another predictor, :math:`-d` in place of d. Torch tensors only.

    Args:
        inner: The predictor that gives the forecasts and keeps the history.
    """

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The forecast of ``inner``, backwards."""
        delta = self.inner.forecast(state, horizons, closed_loop=closed_loop)
        # The factors keep their sign: they are lengths, and a negative one would be none.
        return WeightDelta(delta.names, tuple(-d for d in delta.directions), delta.factors)


def _turned(direction: Tensor, generator: torch.Generator) -> Tensor:
    random = torch.empty_like(direction).normal_(generator=generator)
    tiny = torch.finfo(direction.dtype).tiny
    length = torch.linalg.vector_norm(direction)
    return random.mul_(length / torch.linalg.vector_norm(random).clamp_min(tiny))
