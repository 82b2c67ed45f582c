"""Forecast along the averaged displacement with its spectrum flattened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_predict.backends import AbstractBackend
from hybrid_predict.errors import ConfigError
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.predictors.base import AbstractPredictor, PredictorState, momentum_factors
from hybrid_predict.predictors.momentum import check_decay


@dataclass(frozen=True, kw_only=True)
class SpectralPredictor(AbstractPredictor):
    r"""Forecast as long as the averaged displacement, equally along all its singular directions.

    .. math::
        m \leftarrow \gamma m + (1 - \gamma)(\theta^+ - \theta), \qquad
        \hat\Delta = \beta \, \|m\|_F \, \frac{O}{\|O\|_F}, \quad
        m = U \Sigma V^\top,\; O \approx U V^\top

    The optimizer already covers the large singular directions; the small, persistent ones are where
    the trajectory is slow and can be foreseen. Convolutions are read as matrices of shape
    (output channels, rest); vectors are forecast along m itself.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        refresh_every: Full steps between two computations of O, at least 1.
        iterations: Newton-Schulz steps per computation, at least 1.

    Raises:
        ConfigError: If an argument is out of range.

    References:
        Orthogonalised momentum: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon
    """

    decay: float = 0.95
    refresh_every: int = 16
    iterations: int = 5

    def __post_init__(self) -> None:
        check_decay(self.decay)
        for name in ("refresh_every", "iterations"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(name, "an integer, at least 1", getattr(self, name))

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An average and a direction of zero."""
        return PredictorState(tuple(names), backend.zeros(like), backend.zeros(like))

    def observe(
        self,
        state: PredictorState,
        displacement: Sequence[Any],
        applied: WeightDelta | None,
        backend: AbstractBackend[Any],
    ) -> None:
        """Move the average towards the displacement; flatten it again when that is due."""
        state.average = backend.average(state.average, displacement, self.decay)
        if state.count % self.refresh_every == 0:
            state.direction = backend.flatten_spectrum(
                state.direction, state.average, self.iterations
            )
        state.count += 1

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The flattened average, times the factor of the horizon."""
        factors = momentum_factors(horizons, closed_loop)
        return WeightDelta(state.names, tuple(state.direction), factors)
