"""Forecast in a straight line along the optimizer's own recent updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_predict.backends import AbstractBackend
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.predictors.base import AbstractPredictor, PredictorState
from hybrid_predict.predictors.momentum import check_decay, check_history


@dataclass(frozen=True, kw_only=True)
class LinearPredictor(AbstractPredictor):
    r"""Extrapolate the discounted mean of the optimizer's updates, forecasts taken out.

    .. math::
        \bar u_t = \frac{\sum_{k<t} \gamma^k u_{t-k}}{\sum_{k<t} \gamma^k}, \quad
        u = (\theta^+ - \theta) - \hat\Delta_\text{applied}, \qquad \hat\Delta = h \, \bar u

    Exact for a trajectory of constant velocity from the first observation on. Because forecasts are
    taken out, they cannot feed on themselves, whatever the horizon; this suits one long forecast
    per period better than one before every step.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.

    Raises:
        ConfigError: If ``decay`` is out of range.

    References:
        Brown, *Statistical Forecasting for Inventory Control* (1959): discounted least squares.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        check_decay(self.decay)

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """A mean of zero."""
        check_history(self.decay, backend)
        average = backend.zeros(like)
        return PredictorState(tuple(names), average, average)

    def observe(
        self,
        state: PredictorState,
        observed: Sequence[Any],
        applied: WeightDelta | None,
        backend: AbstractBackend[Any],
        lengths: Any = None,
    ) -> None:
        """Add the optimizer's update, which is the displacement less the applied forecast."""
        update = list(observed)
        if applied is not None:
            negative = [-f for f in applied.factors]
            update = backend.add_scaled(update, applied.directions, negative)
        state.average = state.direction = backend.average(state.average, update, self.decay)
        state.count += 1

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The mean update, times the horizon."""
        weight = 1.0 - self.decay**state.count
        factors = tuple(h / weight if weight > 0 else 0.0 for h in horizons)
        return WeightDelta(state.names, tuple(state.direction), factors)
