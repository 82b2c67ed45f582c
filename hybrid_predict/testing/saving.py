"""Saves and loads a state in the way a checkpoint does."""

from __future__ import annotations

import io
from typing import Any

import torch

from hybrid_predict.errors import ContractError
from hybrid_predict.saved import cloned
from hybrid_predict.tensors import TorchBackend
from hybrid_predict.testing.backends import BackendUnderTest


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
        return _copied(state)
    buffer = io.BytesIO()
    torch.save(cloned(state), buffer)
    buffer.seek(0)
    try:
        return torch.load(buffer, weights_only=True)
    except Exception as error:
        promise = "a state of tensors and primitives, for torch.load(weights_only=True)"
        raise ContractError(name, promise, repr(error)) from error


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(v) for v in value]
    return value.copy() if hasattr(value, "copy") else value
