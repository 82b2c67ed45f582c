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


__all__ = [
    "PREDICTORS",
    "AbstractPredictor",
    "FittedPredictor",
    "MomentumPredictor",
    "PredictorState",
    "make_predictor",
]


@final
@dataclass
class PredictorState:
    """The history of the displacements of a group of tensors."""

    names: tuple[str, ...]  #: Names of the K parameters.
    #: Lists of K tensors by name, each shaped like its parameter. Lengths of forecasts are in
    #: lengths of ``"drift"``, if there is one, else in their own.
    arrays: dict[str, list[Tensor]] = field(default_factory=dict)
    count: int = 0  #: Number of displacements observed so far.


@dataclass(frozen=True, kw_only=True)
class AbstractPredictor(ABC):
    r"""Forecasts the movement of the weights from the displacements seen so far.

    Subclasses are frozen dataclasses of hyperparameters, and should be final. The history is in a
    :class:`PredictorState`: the drift, unless :meth:`init` and :meth:`observe` are overridden,

    .. math::
        \bar d_t = \gamma_t \, \bar d_{t-1} + (1 - \gamma_t) \, D_t / \eta_t, \qquad
        \gamma_t = \min (\gamma, 1 - 1/t)

    with :math:`D_t` the displacement of full step t, and :math:`\eta_t` its learning rate.

    Raises:
        ConfigError: If a hyperparameter is invalid.
    """

    #: Whether forecasts are multiplied by a length that is fitted to the steps after them.
    fitted: ClassVar[bool] = False

    decay: float = 0.95  #: :math:`\gamma` in [0, 1), dimensionless.
    gated: bool = True  #: Whether predicted steps need skill; only benchmarks set it to False.

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", self.decay)
        if not isinstance(self.gated, bool):
            raise ConfigError("gated", "True or False", self.gated)

    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        """Return an empty history for local shards of K parameters, stored as ``history``.

        That is ``float32`` or ``bfloat16``, see `tensors.lists.zeros`.
        """
        from hybrid_predict.tensors.lists import zeros

        check_history(self.decay, history)
        return PredictorState(tuple(names), {"drift": zeros(like, history)})

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Add the displacement of one full step to the history, in place.

        It is that of the (corrected) update per unit of the learning rate, one tensor per
        parameter, which may be overwritten.
        """
        from hybrid_predict.tensors.lists import average

        state.count += 1
        decay = min(self.decay, 1.0 - 1.0 / state.count)
        average(state.arrays["drift"], displacement, decay)

    @abstractmethod
    def forecast(self, state: PredictorState, rates: Sequence[float]) -> WeightDelta:
        """Forecast the movement of one predicted step; neither changes nor copies the history.

        ``rates`` are the current learning rates of the parameters.
        """


def _along_drift(state: PredictorState, rates: Sequence[float], coefficient: float) -> WeightDelta:
    from hybrid_predict.tensors.deltas import WeightDelta

    factors = tuple(coefficient * rate for rate in rates)
    return WeightDelta(state.names, tuple(state.arrays["drift"]), factors)


@final
@dataclass(frozen=True, kw_only=True)
class MomentumPredictor(AbstractPredictor):
    r"""Forecasts a given multiple of the drift, see :class:`AbstractPredictor`.

    .. math:: \hat\Delta = \lambda \, \eta \, \bar d

    with the current learning rate :math:`\eta`.

    References:
        EMA-Nesterov (2026), https://arxiv.org/abs/2605.25395
    """

    coefficient: float = 0.5  #: :math:`\lambda`, dimensionless, finite; 0 moves nothing.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.coefficient):
            raise ConfigError("coefficient", "a finite number", self.coefficient)

    def forecast(self, state: PredictorState, rates: Sequence[float]) -> WeightDelta:
        """Return the coefficient times learning rate times drift."""
        return _along_drift(state, rates, self.coefficient)


@final
@dataclass(frozen=True, kw_only=True)
class FittedPredictor(AbstractPredictor):
    r"""Forecasts the drift, with a length that is fitted by least squares to the next full steps.

    .. math:: \hat\Delta = \lambda \, \eta \, \bar d

    All tensors of a kind have the same :math:`\lambda`, from 0 to 1; see
    :class:`hybrid_predict.policy.confidence.Confidence`.
    """

    fitted: ClassVar[bool] = True

    def forecast(self, state: PredictorState, rates: Sequence[float]) -> WeightDelta:
        """Return the learning rate times the drift."""
        return _along_drift(state, rates, 1.0)


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
