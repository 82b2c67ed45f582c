"""Checks and copies saved states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from hybrid_predict.errors import CheckpointError

STATE_VERSION = 11

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
    """Check that a value is the saved state of an engine of this version.

    Raises:
        CheckpointError: If it is not.
    """
    known = isinstance(state, dict) and all(
        isinstance(state.get(name), kind) for name, kind in _ENTRIES.items()
    )
    if not known:
        raise CheckpointError(
            "state: expected a state from HybridEngine.state_dict(), got something else. "
            "Resume from a checkpoint that the plug-in has written."
        )
    if state["version"] != STATE_VERSION:
        raise CheckpointError(
            f"state: expected version {STATE_VERSION}, got {state['version']!r}. "
            "Resume with the version of hybrid_predict that wrote it."
        )


@contextmanager
def all_or_nothing(restore: Callable[[], None]) -> Iterator[None]:
    """Load a state completely or not at all.

    Args:
        restore: Loads the previous state; it is called if the block fails.

    Raises:
        CheckpointError: If the block raises any exception.
    """
    try:
        yield
    except BaseException as error:
        restore()
        if isinstance(error, CheckpointError) or not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"state: expected a complete, unaltered state, but reading it failed with "
            f"{error!r}. Resume from another checkpoint."
        ) from error


def check_count(name: str, value: Any, least: int = 0) -> int:
    """Return a saved count after checking it.

    Args:
        name: Name of the count, for the message.
        value: The saved value.
        least: Smallest valid count.

    Raises:
        CheckpointError: If the value is not an integer, or below ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CheckpointError(
            f"state: expected {name} to be an integer, at least {least}, got {value!r}. "
            "Resume from another checkpoint."
        )
    return value


def cloned(value: Any) -> Any:
    """Return a copy of nested containers in which every tensor is a detached clone."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    return [cloned(v) for v in value] if isinstance(value, (list, tuple)) else value
