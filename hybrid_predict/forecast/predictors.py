"""The predictors; :data:`PREDICTORS` lists all of them by name. It imports no torch.

A predictor is a frozen object of hyperparameters; the history is in a state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

from hybrid_predict.config import check_history
from hybrid_predict.errors import ConfigError, registered

if TYPE_CHECKING:
    from torch import Tensor

    from hybrid_predict.tensors.deltas import WeightDelta


@final
@dataclass
class PredictorState:
    """The history of the displacements of a group of tensors.

    Args:
        names: Names of the K parameters.
        arrays: Lists of K tensors by name, each shaped like its parameter. Lengths are in lengths
            of ``"drift"``, if there is one, else in lengths of the forecast.
        count: Number of displacements observed so far.
    """

    names: tuple[str, ...]
    arrays: dict[str, list[Tensor]] = field(default_factory=dict)
    count: int = 0


class AbstractPredictor(ABC):
    """Forecasts the movement of the weights from the displacements seen so far.

    Subclasses are frozen dataclasses of hyperparameters, and should be final; the history is in the
    :class:`PredictorState` that :meth:`init` makes.
    """

    gated: bool = True
    """Whether predicted steps need skill; only benchmarks set it to False."""

    fitted: ClassVar[bool] = False
    """Whether forecasts are multiplied by a length that is fitted to the steps after them."""

    @abstractmethod
    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        """Return an empty history.

        Args:
            names: Names of the K parameters.
            like: Their local shards.
            history: Dtype in which averages are stored, ``float32`` or ``bfloat16``; see
                `tensors.lists.zeros`.
        """

    @abstractmethod
    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Add the displacement of one full step to the history, in place.

        Args:
            state: The history.
            displacement: Weights after the (corrected) update minus weights right before it, per
                unit of the learning rate, one tensor per parameter; may be overwritten.
        """

    @abstractmethod
    def forecast(self, state: PredictorState, rates: Sequence[float]) -> WeightDelta:
        """Forecast the movement of one predicted step; neither changes nor copies the history.

        Args:
            state: The history.
            rates: Current learning rate of each parameter.
        """


@dataclass(frozen=True, kw_only=True)
class _DriftPredictor(AbstractPredictor, ABC):
    """Forecasts along the drift, the running average of displacements."""

    decay: float = 0.95
    gated: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", self.decay)
        if not isinstance(self.gated, bool):
            raise ConfigError("gated", "True or False", self.gated)

    @property
    @abstractmethod
    def _length(self) -> float:
        """Length of a forecast, in drifts."""

    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        """Return a history with zero drift."""
        from hybrid_predict.tensors.lists import zeros

        check_history(self.decay, history)
        return PredictorState(tuple(names), {"drift": zeros(like, history)})

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Move the drift towards the displacement."""
        from hybrid_predict.tensors.lists import average

        state.count += 1
        decay = min(self.decay, 1.0 - 1.0 / state.count)
        average(state.arrays["drift"], displacement, decay)

    def forecast(self, state: PredictorState, rates: Sequence[float]) -> WeightDelta:
        """Multiply the drift by its length and the learning rate."""
        from hybrid_predict.tensors.deltas import WeightDelta

        factors = tuple(self._length * rate for rate in rates)
        return WeightDelta(state.names, tuple(state.arrays["drift"]), factors)


@final
@dataclass(frozen=True, kw_only=True)
class MomentumPredictor(_DriftPredictor):
    r"""Forecasts a given multiple of the drift.

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

    @property
    def _length(self) -> float:
        return self.coefficient


@final
@dataclass(frozen=True, kw_only=True)
class FittedPredictor(_DriftPredictor):
    r"""Forecasts the drift, with a length that is fitted by least squares to the next full steps.

    .. math:: \hat\Delta = \lambda \, \eta \, \bar d

    with the drift :math:`\bar d` of :class:`MomentumPredictor`. All tensors of a kind have the same
    :math:`\lambda`, from 0 to 1; see :class:`hybrid_predict.policy.confidence.Confidence`.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        gated: Whether predicted steps need skill.

    Raises:
        ConfigError: If an argument is invalid.
    """

    fitted: ClassVar[bool] = True

    @property
    def _length(self) -> float:
        return 1.0


PREDICTORS: dict[str, type[AbstractPredictor]] = {
    "momentum": MomentumPredictor,
    "fitted": FittedPredictor,
}
"""Every registered predictor by name."""


def make_predictor(choice: Any) -> AbstractPredictor:
    """Return a predictor by its registered name; a predictor object is returned as is.

    Raises:
        ConfigError: If ``choice`` is neither.
    """
    return registered("predictors", choice, PREDICTORS, AbstractPredictor)  # type: ignore[type-abstract]


__all__ = [
    "PREDICTORS",
    "AbstractPredictor",
    "FittedPredictor",
    "MomentumPredictor",
    "PredictorState",
    "make_predictor",
]
