"""Runs of corrected updates alone that decision pages tell of, a line each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.plan import Cell, as_cell
from benchmarks.tasks import TASKS
from benchmarks.train import train
from hybrid_predict.updates import AbstractUpdate

FOLDER = Path(__file__).parents[2] / "docs" / "results"


@cache
def benchmark() -> list[dict[str, Any]]:
    """The runs of the benchmark's suites."""
    files = [FOLDER / f"bench-{suite}.json" for suite in ("core", "wide", "fresh")]
    return [row for file in files for row in json.loads(file.read_text())["runs"]]


def tuned() -> dict[str, Cell]:
    """The cell of `corrected` at the tuned rate, by task."""
    wanted = ("corrected", "tuned")
    cells = [as_cell(row) for row in benchmark() if (row["arm"], row["setting"]) == wanted]
    return {cell.task: cell for cell in reversed(cells)}


def add_runs(
    update: AbstractUpdate,
    told: dict[str, str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    path: Path,
    kept: Sequence[str] = ("loss",),
    **plugin: Any,
) -> None:
    """Train an update for T / 1.5 full steps, and add one line per run to a file.

    Args:
        update: The update of hidden matrices.
        told: What the lines call it: one field and its value.
        tasks: Names of tasks.
        seeds: Seeds of each.
        path: The file of lines.
        kept: Fields of a run that are kept.
        **plugin: Further arguments of `HybridConfig`.
    """
    (name,), first = told.values(), tuned()
    options = {"speedup": 1, "updates": {"hidden": update}, **plugin}
    ARMS[name] = replace(ARMS["corrected"], name=name, plugin=options)
    for task in tasks:
        for seed in seeds:
            found = train(replace(first[task], arm=name, seed=seed), TASKS[task])
            kept_fields = {key: found[key] for key in kept}
            line = json.dumps({"task": task, **told, "seed": seed, **kept_fields})
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)
