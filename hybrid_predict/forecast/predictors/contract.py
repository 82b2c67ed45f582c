"""Checks the form of forecasts and directions from any class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hybrid_predict.errors import PredictorError
from hybrid_predict.torch.deltas import WeightDelta


def check_delta(predictor: object, delta: Any, names: Sequence[str], like: Sequence[Any]) -> None:
    """Check the form of a forecast; its numbers are not read, so the host does not wait.

    Args:
        predictor: The predictor that made it, for the message.
        delta: The forecast.
        names: Names of the K parameters.
        like: K arrays of the parameters' shapes, on their devices.

    Raises:
        PredictorError: If it is not a `WeightDelta`, or has other names, shapes or devices.
    """
    subject = f"{type(predictor).__name__}.forecast"
    if not isinstance(delta, WeightDelta):
        raise PredictorError(subject, "a WeightDelta", type(delta).__name__)
    if tuple(delta.names) != tuple(names):
        raise PredictorError(subject, f"the names {list(names)[:3]}...", list(delta.names)[:3])
    for name, direction, factor, wanted in zip(
        names, delta.directions, delta.factors, like, strict=True
    ):
        if not _is_factor(factor):
            raise PredictorError(subject, f"a number as factor of {name}", factor)
        check_form(subject, name, direction, wanted)


def check_form(subject: str, name: str, direction: Any, wanted: Any) -> None:
    """Check that a direction has the form of its parameter.

    Args:
        subject: Class and method that made it, for the message.
        name: Name of the parameter.
        direction: The direction.
        wanted: An array of the parameter's shape, on its device.

    Raises:
        PredictorError: If it is not a tensor although it should be, or has another shape or device.
    """
    if isinstance(wanted, Tensor) and not isinstance(direction, Tensor):
        raise PredictorError(subject, f"a tensor for {name}", type(direction).__name__)
    if tuple(direction.shape) != tuple(wanted.shape):
        shape = tuple(wanted.shape)
        raise PredictorError(subject, f"shape {shape} for {name}", tuple(direction.shape))
    places = [str(getattr(x, "device", "host")) for x in (wanted, direction)]
    if places[0] != places[1]:
        raise PredictorError(subject, f"device {places[0]} for {name}", places[1])


def check_directions(update: object, directions: Any, wanted: Sequence[tuple[str, Any]]) -> None:
    """Check the form of the directions of a corrected update.

    Args:
        update: The update that made them, for the message.
        directions: The directions.
        wanted: Name and array of each parameter.

    Raises:
        PredictorError: If they are no list, too few or too many, or one has the wrong form.
    """
    subject = f"{type(update).__name__}.direction"
    if not isinstance(directions, (list, tuple)) or len(directions) != len(wanted):
        raise PredictorError(subject, f"a list of {len(wanted)} directions", directions)
    for (name, array), direction in zip(wanted, directions, strict=True):
        check_form(subject, name, direction, array)


def _is_factor(factor: object) -> bool:
    if isinstance(factor, Tensor):
        return factor.dim() == 0
    return isinstance(factor, (int, float)) and not isinstance(factor, bool)
