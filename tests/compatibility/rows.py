"""The compatibility matrix: one row per set-up of a single process, each with its own test.

A row's ``check`` is the test. ``works`` trains a small model through a Trainer with the callback
and asserts what matters; a refusal asserts the typed error; ``not applicable`` asserts that torch
or Lightning itself has no such set-up. ``proof`` names a test elsewhere that shows what the note
says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GROUPS = {
    "precision": "Precision",
    "optimizer": "Optimizers",
    "loop": "Loops, callbacks and loaders",
    "model": "Models",
    "scheduler": "Learning-rate schedulers",
}
WORKS, NOT_APPLICABLE = "works", "not applicable"

Check = Callable[[Path], None]


@dataclass(frozen=True)
class Row:
    """One set-up and what comes of it.

    Args:
        group: Key of :data:`GROUPS`.
        name: What is set up, a few words of Markdown.
        does: What the user writes.
        check: The test; it gets a folder of its own.
        outcome: ``works``, the name of an error, or ``not applicable``.
        note: One line for the user.
        proof: ``file::test`` under ``tests/`` that shows more; empty if ``check`` shows all.
    """

    group: str
    name: str
    does: str
    check: Check
    outcome: str = WORKS
    note: str = ""
    proof: str = ""


class Table:
    """Rows of one group, in the order in which they are added.

    Args:
        group: Key of :data:`GROUPS`.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.rows: list[Row] = []

    def add(self, name: str, does: str, check: Check, **more: str) -> None:
        """Add a row."""
        self.rows.append(Row(self.group, name, does, check, **more))

    def row(self, name: str, does: str, **more: str) -> Callable[[Check], Check]:
        """Add the decorated function as a row's check."""

        def register(check: Check) -> Check:
            self.add(name, does, check, **more)
            return check

        return register


def all_rows() -> list[Row]:
    """Every row, group by group."""
    from compatibility import (
        loaders,
        loops,
        manual,
        models,
        optimizers,
        precision,
        savers,
        schedulers,
    )

    modules = (precision, optimizers, manual, loops, loaders, savers, models, schedulers)
    return [row for module in modules for row in module.TABLE.rows]
