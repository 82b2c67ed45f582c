"""The form that every forecast has to have, whoever wrote the predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hybrid_predict.errors import PredictorError
from hybrid_predict.parameters import WeightDelta


def check_delta(predictor: object, delta: Any, names: Sequence[str], like: Sequence[Any]) -> None:
    """Check the form of a forecast, not its numbers: nothing here waits for a device.

    Args:
        predictor: What made it, for the message.
        delta: The forecast.
        names: Names of its K parameters.
        like: K arrays of the parameters' shapes, on their devices.

    Raises:
        PredictorError: If it is no `WeightDelta`, or one of other names, shapes or devices.
    """
    name = type(predictor).__name__
    if not isinstance(delta, WeightDelta):
        raise PredictorError(name, "a WeightDelta", type(delta).__name__)
    if tuple(delta.names) != tuple(names):
        raise PredictorError(name, f"the names {list(names)[:3]}...", list(delta.names)[:3])
    for which, direction, factor, wanted in zip(
        names, delta.directions, delta.factors, like, strict=True
    ):
        if not isinstance(factor, (int, float)) or isinstance(factor, bool):
            raise PredictorError(name, f"a number as factor of {which}", factor)
        if isinstance(wanted, Tensor) and not isinstance(direction, Tensor):
            raise PredictorError(name, f"a tensor for {which}", type(direction).__name__)
        if tuple(direction.shape) != tuple(wanted.shape):
            shape = tuple(wanted.shape)
            raise PredictorError(name, f"shape {shape} for {which}", tuple(direction.shape))
        places = [str(getattr(x, "device", "host")) for x in (wanted, direction)]
        if places[0] != places[1]:
            raise PredictorError(name, f"device {places[0]} for {which}", places[1])
