"""Saved states: their version, loading them whole or not at all, and copies of them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from hybrid_predict.errors import CheckpointError, raise_interrupt

STATE_VERSION = 23


def check_state(state: Any) -> None:
    """Check that a value is the saved state of an engine of this version.

    Raises:
        CheckpointError: If it is not.
    """
    check_entries(state, {"version": int})
    if state["version"] != STATE_VERSION:
        raise CheckpointError(
            f"state: expected version {STATE_VERSION}, got {state['version']!r}. "
            "Resume with the version of hybrid_predict that wrote it."
        )


def check_entries(state: Any, entries: Mapping[str, type]) -> None:
    """Check that a saved state is a dict with these entries.

    Raises:
        CheckpointError: If an entry is missing or has another type.
    """
    if not isinstance(state, dict):
        raise damaged("a state that the plug-in has saved", type(state).__name__)
    for name, kind in entries.items():
        if not isinstance(state.get(name), kind):
            got = type(state[name]).__name__ if name in state else "no such entry"
            raise damaged(f"{name} to be a {kind.__name__}", got)


def damaged(expected: str, got: object) -> CheckpointError:
    """Return the error for a saved state in which something is not as expected."""
    remedy = "Resume from another checkpoint."
    return CheckpointError(f"state: expected {expected}, got {reprlib.repr(got)}. {remedy}")


@contextmanager
def reading(what: str = "state") -> Iterator[None]:
    """Convert any error that a damaged state raises in the block to a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise_interrupt(error)
        raise CheckpointError(
            f"{what}: expected a complete, unaltered state, but reading it failed with "
            f"{error!r}. Resume from another checkpoint."
        ) from error


@contextmanager
def all_or_nothing(restore: Callable[[], None]) -> Iterator[None]:
    """Load a state completely or not at all.

    Raises:
        CheckpointError: If the block raises any exception.
    """
    try:
        with reading():
            yield
    except BaseException:
        restore()
        raise


def cloned(value: Any) -> Any:
    """Return a copy of nested containers in which every tensor is a detached clone."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    return [cloned(v) for v in value] if isinstance(value, (list, tuple)) else value
