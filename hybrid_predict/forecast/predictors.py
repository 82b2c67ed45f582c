"""The predictors; :data:`PREDICTORS` lists all of them by name. It imports no torch.

A predictor is a frozen object of hyperparameters; the `Forecaster` of a group has the drift.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from hybrid_predict.errors import ConfigError, registered

if TYPE_CHECKING:
    from torch import Tensor


__all__ = ["PREDICTORS", "FittedPredictor", "MomentumPredictor", "Predictor", "make_predictor"]


@dataclass(frozen=True, kw_only=True)
class Predictor(ABC):  # noqa: B024  LightningCLI takes no subclasses of mere dataclasses
    r"""Forecasts a multiple :math:`\lambda` of the drift, times the current learning rate.

    .. math:: \hat\Delta = \lambda \, \eta \, \bar d, \qquad
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

    @property
    def multiple(self) -> float:
        r"""Return :math:`\lambda`, before it is fitted."""
        return 1.0

    def directions(self, drift: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        """Return what forecasts go along in place of the drift, in the same form; placebos do.

        ``drift`` has one tensor per parameter and must not be changed; ``count`` is the number of
        displacements in it.
        """
        return drift


@final
@dataclass(frozen=True, kw_only=True)
class MomentumPredictor(Predictor):
    r"""Forecasts a given multiple of the drift, see :class:`Predictor`.

    References:
        EMA-Nesterov (2026), https://arxiv.org/abs/2605.25395
    """

    coefficient: float = 0.5  #: :math:`\lambda`, dimensionless, finite; 0 moves nothing.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.coefficient):
            raise ConfigError("coefficient", "a finite number", self.coefficient)

    @property
    def multiple(self) -> float:
        """Return the coefficient."""
        return self.coefficient


@final
@dataclass(frozen=True, kw_only=True)
class FittedPredictor(Predictor):
    r"""Forecasts the drift, with a length that is fitted by least squares to the next full steps.

    All tensors of a kind have the same :math:`\lambda` of :class:`Predictor`, from 0 to 1; see
    :class:`hybrid_predict.policy.confidence.Confidence`.
    """

    fitted: ClassVar[bool] = True


PREDICTORS: dict[str, type[Predictor]] = {
    "momentum": MomentumPredictor,
    "fitted": FittedPredictor,
}
"""Every registered predictor by name."""


def make_predictor(choice: Any) -> Predictor:
    """Return a predictor by its registered name; a predictor object is returned as is.

    Raises:
        ConfigError: If ``choice`` is neither.
    """
    return registered("predictors", choice, PREDICTORS, Predictor)
