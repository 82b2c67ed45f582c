"""The predictors along the drift, the running average of displacements. They import no torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.base import AbstractPredictor, PredictorState
from hybrid_predict.rules.skill import add_squares, fit

if TYPE_CHECKING:
    from torch import Tensor

    from hybrid_predict.forecast.window import Reading
    from hybrid_predict.torch.deltas import WeightDelta

START = 0.5  # length of a forecast, in drifts, before any window was fitted


@dataclass(frozen=True, kw_only=True)
class _DriftPredictor(AbstractPredictor, ABC):
    """Forecast a multiple of the drift."""

    decay: float = 0.95
    gated: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", self.decay)
        if not isinstance(self.gated, bool):
            raise ConfigError("gated", "True or False", self.gated)

    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        """Return a history with zero drift."""
        from hybrid_predict.torch.lists import check_history, zeros

        check_history(self.decay, history)
        return PredictorState(tuple(names), {"drift": zeros(like, history)})

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Move the drift towards the displacement."""
        from hybrid_predict.torch.lists import average

        state.count += 1
        decay = min(self.decay, 1.0 - 1.0 / state.count)
        average(state.arrays["drift"], displacement, decay)

    def forecast(self, state: PredictorState, rates: Sequence[float | Tensor]) -> WeightDelta:
        """Multiply the drift by its length and the learning rate."""
        from hybrid_predict.torch.deltas import WeightDelta

        pairs = zip(state.names, rates, strict=True)
        factors = tuple(self._length(state, name) * rate for name, rate in pairs)
        return WeightDelta(state.names, tuple(state.arrays["drift"]), factors)

    @abstractmethod
    def _length(self, state: PredictorState, name: str) -> float:
        """Return the length of a tensor's forecast, as a multiple of the drift."""


@final
@dataclass(frozen=True, kw_only=True)
class MomentumPredictor(_DriftPredictor):
    r"""Forecast a given multiple of the drift.

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

    coefficient: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.coefficient):
            raise ConfigError("coefficient", "a finite number", self.coefficient)

    def _length(self, state: PredictorState, name: str) -> float:
        return self.coefficient


@final
@dataclass(frozen=True, kw_only=True)
class FittedPredictor(_DriftPredictor):
    r"""Forecast the drift with a length that is fitted by least squares to the next full steps.

    .. math:: \hat\Delta = \eta \, \lambda_k \, \bar d, \qquad
        \lambda = \arg \min_\lambda \sum_w \frac{\phi^{W - w}}{\|\bar d_w\|^2} \,
        \Bigl\| \tfrac1{K_w} D_w - \lambda \, \bar d_w \Bigr\|^2 + \rho \,
        \| \lambda - \bar\lambda \|^2_{\bar d}

    with :math:`\bar d` the drift of `MomentumPredictor`, and :math:`D_w` the sum of the :math:`K_w`
    displacements in window w, on a fixed sample of entries. Every window is divided by the squared
    length of its drift over all tensors, so all windows have the same weight, although drifts get
    many times shorter during a run. Each tensor has its own length; the ridge pulls it towards
    :math:`\bar\lambda`, the length fitted to all tensors together. No forecast is longer than the
    drift. The formula is in `rules.skill`.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        ridge: :math:`\rho`, at least 0. 0 fits each tensor separately; a large value fits all
            tensors alike.
        memory: :math:`\phi` in [0, 1], the factor on a window's weight with each later window.
        gated: Whether predicted steps need skill.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        Least squares with forgetting: Ljung, System Identification (1999), chapter 11.
    """

    ridge: float = 0.3
    memory: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.ridge < math.inf:
            raise ConfigError("ridge", "a finite number, at least 0", self.ridge)
        if not 0.0 <= self.memory <= 1.0:
            raise ConfigError("memory", "in [0, 1]", self.memory)

    def _length(self, state: PredictorState, name: str) -> float:
        return state.numbers[name][0] if name in state.numbers else START

    def fitted_direction(self, state: PredictorState) -> list[Tensor]:
        """Return the drifts."""
        return state.arrays["drift"]

    def fit(self, state: PredictorState, reading: Reading) -> float:
        """Fit the lengths with one more window; skip one without drift or not finite."""
        if reading.gram.shape[1] < 3:  # saved by a run that fitted no length
            return reading.square
        sums = np.array([state.numbers.get(n, (START, 0.0, 0.0))[1:] for n in reading.names])
        with np.errstate(all="ignore"):  # windows that are not finite are skipped
            new = add_squares(sums, reading.gram, reading.steps, self.memory)
        if not np.array_equal(new, sums):
            rows = zip(reading.names, fit(new, self.ridge).tolist(), new.tolist(), strict=True)
            state.numbers.update({name: [length, *row] for name, length, row in rows})
        lengths = np.array([self._length(state, name) for name in reading.names])
        return float((lengths**2 * reading.gram[:, 2, 2]).sum())
