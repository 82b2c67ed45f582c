"""Results of models of 10 M and 30 M parameters as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import groupby

from benchmarks.arms import ARMS
from benchmarks.figures import of_arm
from benchmarks.plan import Row, number
from benchmarks.scale.sizes import TASKS
from benchmarks.scale.study import PLAIN
from benchmarks.table import NONE, markdown, speedup_text

CURVE = ("short", PLAIN, "plain-double")
"""Plain runs that speedups are read off, ascending in steps."""

TITLES = ["parameters", "bytes a step", "arm", "rate", "full steps", "predicted steps",
          "final loss, mean", "speedup at equal quality", "processor time / plain, T",
          "seeds"]  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """A row per task, arm and rate, in the order of the study.

    The seconds of runs with ``--untimed`` are None.
    """
    order = [task.name for task in TASKS]
    kept = sorted(rows, key=lambda row: (order.index(row["task"]), row["tokens"]))
    lines = [
        line
        for _, group in groupby(kept, key=lambda row: row["task"])
        for line in _lines(list(group))
    ]
    return markdown(TITLES, lines) if lines else "Not measured yet."


def _lines(rows: list[Row]) -> list[list[str]]:
    """Return the lines of one task."""
    plain = [row for row in rows if row["arm"] == PLAIN and row["seed"] == 0]
    chosen = min(plain, key=lambda row: number(row["loss"]))["rate"]
    runs = {
        arm: {row["seed"]: row for row in rows if row["arm"] == arm and row["rate"] == chosen}
        for arm in ARMS
    }
    others = [row for row in plain if row["rate"] != chosen]
    lines = [_line(row["arm"], {0: row}, runs, NONE) for row in others]
    for arm, group in runs.items():
        if group:
            lines.append(_line(arm, group, runs, NONE if arm in CURVE else _speedup(arm, runs)))
    return lines


def _line(
    arm: str, group: dict[int, Row], runs: dict[str, dict[int, Row]], speedup: str
) -> list[str]:
    rows = list(group.values())
    first, whole = rows[0], runs[PLAIN]
    pairs = [
        (row["seconds"], whole[seed]["seconds"]) for seed, row in group.items() if seed in whole
    ]
    times = [own / plain for own, plain in pairs if None not in (own, plain)]
    return [
        f"{first['parameters'] / 1e6:.1f} M", f"{first['tokens']:,}", ARMS[arm].title,
        f"{first['rate']:.2g}", f"{_mean(rows, 'full_steps'):,.0f}",
        f"{_mean(rows, 'predicted_steps'):,.0f}", f"{_mean(rows, 'loss'):.4f}", speedup,
        f"{statistics.fmean(times):.2f}" if times else NONE, str(len(rows)),
    ]  # fmt: skip


def _speedup(arm: str, runs: dict[str, dict[int, Row]]) -> str:
    found = of_arm(runs, CURVE, arm)
    return NONE if found is None else speedup_text(found)


def _mean(rows: list[Row], field: str) -> float:
    return statistics.fmean(number(row[field]) for row in rows)
