"""Saved states: their version, loading them whole or not at all, and copies of them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from hybrid_predict.errors import CheckpointError, raise_interrupt

STATE_VERSION = 26


def check_state(state: Any) -> None:
    """Raise CheckpointError unless a value is the saved state of an engine of this version."""
    version = state.get("version") if isinstance(state, dict) else None
    if version != STATE_VERSION:
        got = reprlib.repr(state) if version is None else f"version {version!r}"
        raise CheckpointError(
            f"state: expected one that the plug-in has saved, of version {STATE_VERSION}, got "
            f"{got}. Resume with the version of hybrid_predict that wrote it."
        )


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
    """Do as `reading`, and restore what was there before if the block raises anything."""
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
