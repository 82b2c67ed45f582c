"""One run of every arm at 124 M parameters, on bytes of source text that is installed anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.arms import ARMS, PLAIN
from benchmarks.plan import Cell, number, recipe_digest, to_row
from benchmarks.run import code_digest
from benchmarks.tasks import Task
from benchmarks.train import train
from hybrid_predict.runs.evidence import Speedup, speedup

NAMES = ("short", "plain", "plain-double", "corrected", "hybrid", "muon")
"""The arms. All have the task's own rate; hidden matrices under Muon have four times that rate."""

_HIDDEN = {"muon": 4.0}


def runs(
    task: Task, done: Sequence[Mapping[str, Any]], say: Callable[[Any], object]
) -> Iterator[dict[str, Any]]:
    """Train every arm that is not done yet.

    Args:
        task: What is trained.
        done: Rows of an earlier call; those of the same recipe count as done.
        say: Is told every row.

    Yields:
        Rows as in the benchmark's own results.
    """
    for name in NAMES:
        cell = Cell(
            task.name, "default-decay", name, 0, task.recipe.learning_rate, _HIDDEN.get(name, 1.0),
            True, task.steps, recipe_digest(task, ARMS[name]),
        )  # fmt: skip
        found = next((r for r in done if (r["arm"], r["recipe"]) == (name, cell.recipe)), None)
        row = dict(found or to_row(cell, {**train(cell, task), "code": code_digest(name)}))
        say(row)
        yield row


def speedups(rows: Sequence[Mapping[str, Any]]) -> dict[str, Speedup]:
    """Speedup at equal quality of every arm but the plain ones; of one run each, so a hint.

    Args:
        rows: Rows of all plain arms, and of others.
    """
    plain = [row for name in PLAIN for row in rows if row["arm"] == name]
    budgets = [row["full_steps"] for row in plain]
    losses = [[number(row["loss"])] for row in plain]
    return {
        row["arm"]: speedup(budgets, losses, [number(row["loss"])], [row["full_steps"]])
        for row in rows
        if row["arm"] not in PLAIN
    }
