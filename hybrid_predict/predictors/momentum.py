"""Forecast along the moving average of the displacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_predict.backends import AbstractBackend
from hybrid_predict.errors import ConfigError
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.predictors.base import AbstractPredictor, PredictorState, momentum_factors


@dataclass(frozen=True, kw_only=True)
class MomentumPredictor(AbstractPredictor):
    r"""Forecast the averaged displacement.

    .. math:: m \leftarrow \gamma m + (1 - \gamma)(\theta^+ - \theta), \qquad \hat\Delta = \beta m

    with :math:`\beta = h / (1 + h)` for a horizon of h updates.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.

    Raises:
        ConfigError: If ``decay`` is out of range.

    References:
        EMA-Nesterov (2026), https://arxiv.org/abs/2605.25395
    """

    decay: float = 0.95

    def __post_init__(self) -> None:
        check_decay(self.decay)

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An average of zero."""
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
        """Move the average towards the displacement."""
        state.average = state.direction = backend.average(state.average, observed, self.decay)
        state.count += 1

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The average, times the factor of the horizon."""
        factors = momentum_factors(horizons, closed_loop)
        return WeightDelta(state.names, tuple(state.direction), factors)


def check_decay(decay: float) -> None:
    """Raise a ConfigError unless ``decay`` lies in [0, 1)."""
    if not 0.0 <= decay < 1.0:
        raise ConfigError("decay", "a number in [0, 1)", decay)


def check_history(decay: float, backend: AbstractBackend[Any]) -> None:
    r"""Check that a history of the backend's type can follow an average.

    An increment :math:`(1 - \gamma)(g - m)` below half the spacing of bfloat16 is rounded away, so
    an entry stops within :math:`2^{-8} / (1 - \gamma)` of a gradient that does not change: 8 % at
    0.95.

    Raises:
        ConfigError: If ``decay`` is above 0.95 and histories are kept in bfloat16.
    """
    if backend.history == "bfloat16" and decay > 0.95:
        raise ConfigError(
            "history_dtype",
            "'float32' with predictors whose decay is above 0.95",
            backend.history,
            "Lower the decay, or keep histories in 32 bits.",
        )
