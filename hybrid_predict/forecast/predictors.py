"""The registered predictors; :data:`PREDICTORS` lists all of them by name. It imports no torch."""

from typing import Any

from hybrid_predict.errors import ConfigError, did_you_mean
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
    if isinstance(choice, AbstractPredictor):
        return choice
    if isinstance(choice, str) and choice in PREDICTORS:
        return PREDICTORS[choice]()
    expected = f"one of {', '.join(sorted(PREDICTORS))}, or an AbstractPredictor"
    raise ConfigError("predictors", expected, choice, did_you_mean(choice, PREDICTORS))


__all__ = [
    "PREDICTORS",
    "AbstractPredictor",
    "FittedPredictor",
    "MomentumPredictor",
    "PredictorState",
    "make_predictor",
]
