"""Checks that predictors and updates share: of arguments, classes and saved states."""

from __future__ import annotations

import dataclasses
import inspect
import io
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from hybrid_predict.errors import ConfigError, ContractError
from hybrid_predict.forecast.predictors import PREDICTORS, AbstractPredictor
from hybrid_predict.saved import cloned
from hybrid_predict.tensors import TorchBackend
from hybrid_predict.updates import UPDATES, AbstractUpdate

if TYPE_CHECKING:
    from hybrid_predict.testing.backends import BackendUnderTest

_REGISTERED: dict[type, dict[str, type]] = {
    AbstractPredictor: dict(PREDICTORS),
    AbstractUpdate: dict(UPDATES),
}


def expect(argument: str, value: object, kind: type) -> None:
    """Check that an argument is an object of a class.

    Raises:
        ConfigError: If it is not; the remedy says how to make one.
    """
    if isinstance(value, kind):
        return
    known, base = _REGISTERED.get(kind, {}), kind.__name__
    remedy = f"Derive its class from {base}." if known else f"Make one: {base}(...)."
    if inspect.isclass(value) and issubclass(value, kind):
        remedy = f"Make one of the class: {value.__name__}(...)."
    elif isinstance(value, str) and value in known:
        remedy = f"Make one: {known[value].__name__}()."
    article = "an" if base[0] in "AEIO" else "a"
    raise ConfigError(argument, f"{article} object of {base}", value, remedy)


def check_frozen(value: object) -> None:
    """Check that an object is a frozen dataclass."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    if not dataclasses.is_dataclass(value) or parameters is None or not parameters.frozen:
        raise ContractError(type(value).__name__, "a frozen dataclass")


def saved_and_loaded(name: str, state: Any, case: BackendUnderTest) -> Any:
    """Return a copy of a state; torch tensors go through ``torch.save`` and ``torch.load``.

    Args:
        name: Name of the class that has the state, for the message.
        state: Nested containers of arrays and primitives.
        case: The backend of its arrays.

    Raises:
        ContractError: If it has anything but tensors and primitives.
    """
    if not isinstance(case.backend, TorchBackend):
        return deepcopy(state)
    buffer = io.BytesIO()
    torch.save(cloned(state), buffer)
    buffer.seek(0)
    try:
        return torch.load(buffer, weights_only=True)
    except Exception as error:
        promise = "a state of tensors and primitives, for torch.load(weights_only=True)"
        raise ContractError(name, promise, repr(error)) from error
