"""The registered predictors; :data:`PREDICTORS` lists all of them by name. It imports no torch."""

from typing import Any

from hybrid_predict.errors import registered
from hybrid_predict.forecast.base import AbstractPredictor, PredictorState
from hybrid_predict.forecast.drift import FittedPredictor, MomentumPredictor

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
