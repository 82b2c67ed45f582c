"""Predictors, one class per file; :data:`PREDICTORS` is the one place that lists them."""

from typing import Any

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors.base import AbstractPredictor, PredictorState
from hybrid_predict.forecast.predictors.fitted import FittedPredictor
from hybrid_predict.forecast.predictors.momentum import MomentumPredictor

PREDICTORS: dict[str, type[AbstractPredictor]] = {
    "momentum": MomentumPredictor,
    "fitted": FittedPredictor,
}
"""Every registered predictor by name."""


def make_predictor(choice: Any) -> AbstractPredictor:
    """A predictor from its registered name, or the object itself.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(choice, AbstractPredictor):
        return choice
    if isinstance(choice, str) and choice in PREDICTORS:
        return PREDICTORS[choice]()
    names = ", ".join(sorted(PREDICTORS))
    raise ConfigError("predictors", f"one of {names}, or an AbstractPredictor", choice)


__all__ = [
    "PREDICTORS",
    "AbstractPredictor",
    "FittedPredictor",
    "MomentumPredictor",
    "PredictorState",
    "make_predictor",
]
