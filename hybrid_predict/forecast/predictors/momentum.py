"""A predictor along the drift, the running average of displacements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors.base import AbstractPredictor, PredictorState
from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.tensors.base import check_history
from hybrid_predict.torch.deltas import WeightDelta


@final
@dataclass(frozen=True, kw_only=True)
class MomentumPredictor(AbstractPredictor):
    r"""Forecast a fixed multiple of the drift.

    .. math::
        \bar d_t = \gamma_t \, \bar d_{t-1} + (1 - \gamma_t) \, D_t / \eta_t, \qquad
        \gamma_t = \min (\gamma, 1 - 1/t), \qquad \hat\Delta = \lambda \, \eta \, \bar d_t

    with :math:`D_t` the displacement of full step t, :math:`\eta_t` its learning rate and
    :math:`\eta` the current one. The first displacements are averaged with equal weights.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        coefficient: :math:`\lambda`, dimensionless, finite; 0 moves nothing.
        gated: Whether predicted steps need skill.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        EMA-Nesterov (2026), https://arxiv.org/abs/2605.25395
    """

    decay: float = 0.95
    coefficient: float = 0.5
    gated: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", self.decay)
        if not math.isfinite(self.coefficient):
            raise ConfigError("coefficient", "a finite number", self.coefficient)
        if not isinstance(self.gated, bool):
            raise ConfigError("gated", "True or False", self.gated)

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """Return a history with zero drift."""
        check_history(self.decay, backend)
        return PredictorState(tuple(names), {"drift": backend.zeros(like)})

    def observe(
        self,
        state: PredictorState,
        displacement: Sequence[Any],
        backend: AbstractBackend[Any],
    ) -> None:
        """Move the drift towards the displacement."""
        state.count += 1
        decay = min(self.decay, 1.0 - 1.0 / state.count)
        state.arrays["drift"] = backend.average(state.arrays["drift"], displacement, decay)

    def forecast(self, state: PredictorState, rates: Sequence[Any]) -> WeightDelta:
        """Multiply the drift by coefficient and learning rate."""
        factors = tuple(self.coefficient * rate for rate in rates)
        return WeightDelta(state.names, tuple(state.arrays["drift"]), factors)
