"""Saved states: copied when taken, checked before they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from hybrid_predict.errors import CheckpointError

STATE_VERSION = 8

_ENTRIES = {
    "version": int,
    "names": list,
    "kinds": dict,
    "undecided": list,
    "lag": int,
    "ranks": int,
    "clock": dict,
    "ledger": dict,
    "tensors": dict,
    "verdicts": dict,
    "bystanders": list,
}


def check_state(state: Any) -> None:
    """Check that something is the saved state of an engine of this version.

    Raises:
        CheckpointError: If it is not.
    """
    known = isinstance(state, dict) and all(
        isinstance(state.get(name), kind) for name, kind in _ENTRIES.items()
    )
    if not known:
        raise CheckpointError(
            "state: expected what HybridEngine.state_dict() gave. "
            "Resume from a checkpoint that the plug-in has written."
        )
    if state["version"] != STATE_VERSION:
        raise CheckpointError(
            f"state: expected version {STATE_VERSION}, got {state['version']!r}. "
            "Resume with the version of hybrid_predict that wrote it."
        )


@contextmanager
def all_or_nothing(restore: Callable[[], None]) -> Iterator[None]:
    """Let a state be loaded as a whole or not at all.

    Args:
        restore: Loads what there was before; called if the block fails.

    Raises:
        CheckpointError: Whatever goes wrong in the block.
    """
    try:
        yield
    except BaseException as error:
        restore()
        if isinstance(error, CheckpointError) or not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"state: expected a whole, unaltered state, got one whose reading failed with "
            f"{error!r}. Resume from another checkpoint."
        ) from error


def check_count(name: str, value: Any, least: int = 0) -> int:
    """A saved count.

    Raises:
        CheckpointError: If it is no integer, or below ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CheckpointError(
            f"state: expected {name} to be an integer, at least {least}, got {value!r}. "
            "Resume from another checkpoint."
        )
    return value


def cloned(value: Any) -> Any:
    """A copy of nested containers in which every tensor is new."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    return [cloned(v) for v in value] if isinstance(value, (list, tuple)) else value
