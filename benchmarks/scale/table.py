"""Results of several widths and lengths as Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.plan import TUNING, TUNING_SEED, Row
from benchmarks.scale.cost import LOOPS
from benchmarks.scale.figures import Point, points
from benchmarks.scale.sizes import CASES, PLAIN
from benchmarks.table import NONE, markdown, speedup_text


def blocks(rows: Iterable[Row], cost: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """What makes the blocks of the page, by name.

    Args:
        rows: Rows of ``scale.jsonl``.
        cost: What ``scale-cost.json`` holds.
    """
    kept = list(rows)
    return {
        "scale source": partial(source, kept),
        "scale plain": partial(plain_table, kept),
        "scale speedups": partial(speedups_table, kept),
        "scale cost": partial(cost_table, cost),
    }


def source(rows: list[Row]) -> str:
    """How many runs there are, and which cases are not done."""
    found = {(p.width, p.steps, p.arm): p for p in points(rows)}
    missing = [
        f"width {case.width} at T = {case.steps:,} ({', '.join(arms)})"
        for case in CASES
        if (arms := [arm for arm in case.arms if not _done(found, case.width, case.steps, arm)])
    ]
    trials = sum(row["setting"] == TUNING for row in rows)
    codes = len({row["code"] for row in rows if ARMS[row["arm"]].plugin is not None})
    mixed = f" Runs with the plug-in come from {codes} states of the code." if codes > 1 else ""
    still = f" Not done yet: {'; '.join(missing)}." if missing else ""
    return (
        f"{len(rows) - trials} runs, and {trials} trials of rates with seed {TUNING_SEED}, one "
        f"thread each. So few seeds make every difference a hint.{mixed}{still}"
    )


def _done(found: Mapping[tuple[int, int, str], Point], width: int, steps: int, arm: str) -> bool:
    point = found.get((width, steps, arm))
    return point is not None and point.speedup is not None


def plain_table(rows: list[Row]) -> str:
    """The plain runs, a row per width and length."""
    lines = [
        [str(p.width), f"{p.parameters:,}", f"{p.full_steps:,.0f}", f"{p.tokens:.2g}",
         f"{p.rate:g}", _loss(p), str(p.seeds)]
        for p in points(rows) if p.arm == PLAIN
    ]  # fmt: skip
    titles = ["width", "parameters", "full steps", "bytes per parameter", "rate",
              "final loss, mean", "seeds"]  # fmt: skip
    return markdown(titles, lines)


def speedups_table(rows: list[Row]) -> str:
    """The arms beside plain training, a row per width, length and arm."""
    lines = [
        [str(p.width), f"{p.steps:,}", ARMS[p.arm].title, f"{p.full_steps:,.0f}",
         f"{p.predicted_steps:,.0f}", f"{p.tokens:.2g}",
         f"{p.rate:g}" + (f" x {p.hidden:g}" if p.hidden != 1 else ""), _loss(p),
         NONE if p.speedup is None else speedup_text(p.speedup), str(p.seeds)]
        for p in points(rows) if p.arm != PLAIN
    ]  # fmt: skip
    titles = ["width", "T", "arm", "full steps", "predicted steps", "bytes per parameter",
              "rate (x hidden)", "final loss, mean", "speedup at equal quality",
              "seeds"]  # fmt: skip
    return markdown(titles, lines)


def cost_table(cost: Mapping[str, Any]) -> str:
    """A full step of every arm beside a plain one, a row per width and rows of a batch."""
    lines = []
    for row in cost["rows"]:
        shares = (row[arm]["counted"] for arm in ("corrected", "corrected-any-cost"))
        lines.append([
            str(row["width"]), str(row["rows"]), f"{row['tokens']:,}", f"{row['plain_ms']:.1f}",
            *(_ratio(row[arm]) for arm in LOOPS), *(f"{share:.0%}" for share in shares),
        ])  # fmt: skip
    titles = ["width", "rows", "bytes in a batch", "plain full step, ms",
              *(f"{ARMS[arm].title} / plain" for arm in LOOPS), "counted, corrected",
              "counted, whatever it costs"]  # fmt: skip
    return markdown(titles, lines)


def _ratio(found: Mapping[str, Any]) -> str:
    low, high = found["quartiles"]
    return f"{found['ratio']:.2f} [{low:.2f}, {high:.2f}]"


def _loss(point: Point) -> str:
    return f"{point.loss:.4f}" if math.isfinite(point.loss) else "diverged"
