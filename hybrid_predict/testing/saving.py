"""State as a checkpoint would keep it."""

from __future__ import annotations

import io
from typing import Any

import torch

from hybrid_predict.accounts.saved import cloned
from hybrid_predict.errors import ContractError
from hybrid_predict.tensors import TorchBackend
from hybrid_predict.testing.backends import BackendUnderTest


def saved_and_loaded(name: str, state: Any, case: BackendUnderTest) -> Any:
    """A copy of a state, for torch's arrays by way of a file that ``torch.load`` reads safely.

    Args:
        name: Whose state it is, for the message.
        state: Nested containers of arrays and primitives.
        case: The backend of its arrays.

    Raises:
        ContractError: If it holds anything but tensors and primitives.
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
