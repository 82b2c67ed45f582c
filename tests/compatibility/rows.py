"""The rows of the compatibility page: one set-up of a single process each, with its own test.

The tables are in docs/compatibility.md. A check trains a small model through a Trainer with the
callback, asserts what matters, and returns nothing if that works. If it is refused, the check
returns what the page says of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Check = Callable[[Path], str | None]

CHECKS: dict[str, Check] = {}
"""The check of each row, by its set-up; a check gets a folder of its own."""


def row(name: str) -> Callable[[Check], Check]:
    """Make the decorated function the check of a row."""

    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register
