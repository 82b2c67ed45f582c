"""The rows of docs/compatibility.md: one set-up of a single process each, with its own test.

A check trains a small model through a Trainer with the callback and asserts what matters. If the
set-up is refused, the check returns what the page says of it, a string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

CHECKS: dict[str, Callable[..., object]] = {}
"""The check of each row, by its set-up; a check gets a folder of its own."""

Register = Callable[[Callable[..., Any]], Callable[..., Any]]


def row(name: str, *arguments: Any) -> Register:
    """Make the decorated function the check of a row, with arguments before its folder."""
    return rows({name: arguments})


def rows(table: Mapping[str, Sequence[Any]]) -> Register:
    """Make the decorated function the check of several rows, with arguments for each."""

    def register(check: Callable[..., Any]) -> Callable[..., Any]:
        CHECKS.update((name, partial(check, *arguments)) for name, arguments in table.items())
        return check

    return register
