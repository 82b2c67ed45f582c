"""What the checks of predictors and updates share."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.errors import ConfigError, ContractError
from hybrid_predict.saved import cloned


def expect(argument: str, value: object, base: type, known: Mapping[str, type]) -> None:
    """Check that an argument is an object of a class; the remedy says how to make one."""
    if isinstance(value, base):
        return
    remedy = f"Derive its class from {base.__name__}."
    if inspect.isclass(value) and issubclass(value, base):
        remedy = f"Make one of the class: {value.__name__}(...)."
    elif isinstance(value, str) and value in known:
        remedy = f"Make one: {known[value].__name__}()."
    raise ConfigError(argument, f"an object of {base.__name__}", value, remedy)


def check_form(value: object, history: object) -> None:
    """Check that an object is a frozen dataclass, and that there is such a type of averages."""
    if history not in HISTORY_DTYPES:
        raise ConfigError("history", f"one of {', '.join(HISTORY_DTYPES)}", history)
    parameters = getattr(type(value), "__dataclass_params__", None)
    require(parameters and parameters.frozen, value, "a frozen dataclass")


def require(kept: object, value: object, promise: str, *got: object) -> None:
    """Raise a `ContractError` for an object that has not kept a promise."""
    if not kept:
        raise ContractError(type(value).__name__, promise, *got)


def reloaded(value: object, state: Any) -> Any:
    """Return a copy of the state of an object that went through ``torch.save`` and ``load``."""
    buffer = io.BytesIO()
    torch.save(cloned(state), buffer)
    buffer.seek(0)
    try:
        return torch.load(buffer, weights_only=True)
    except Exception as error:
        promise = "a state of tensors and primitives, for torch.load(weights_only=True)"
        raise ContractError(type(value).__name__, promise, repr(error)) from error


def steps(shapes: Mapping[str, tuple[int, ...]], seed: int = 0, count: int = 4) -> Any:
    """Return random tensors of 32 bits, one list of them per full step."""
    generator = torch.Generator().manual_seed(seed)
    shaped = shapes.values()
    return [[torch.randn(shape, generator=generator) for shape in shaped] for _ in range(count)]


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors are equal, element by element."""
    return all(map(torch.equal, left, right))
