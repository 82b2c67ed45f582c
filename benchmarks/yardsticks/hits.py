"""How many full steps a target takes, as Markdown tables, and what all tables share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping

from benchmarks.arms import ARMS
from benchmarks.plan import Row
from benchmarks.table import NONE, markdown
from benchmarks.yardsticks import yardsticks

Runs = dict[int, Row]
"""Rows of one task and arm, by seed."""

BASE = "plain"


def grouped(rows: Iterable[Row]) -> dict[str, dict[str, Runs]]:
    """Return rows by task, arm and seed; arms in the order of the first run."""
    found: dict[str, dict[str, Runs]] = {}
    for row in rows:
        found.setdefault(row["task"], {}).setdefault(row["arm"], {})[row["seed"]] = row
    return found


def targets(rows: Collection[Row]) -> str:
    """Compare the full steps until a target is reached, a row per task and arm."""
    lines = [
        [f"`{task}`", ARMS[arm].title, f"{_reached(runs)} of {len(runs)}", _steps(runs),
         _ratio(arms, arm), *times(runs.values())]
        for task, arms in grouped(rows).items() for arm, runs in arms.items()
    ]  # fmt: skip
    titles = ["task", "arm", "reached", "full steps until then", "plain / these",
              "processor seconds", "seconds"]  # fmt: skip
    return markdown(titles, lines)


def traps(rows: Collection[Row]) -> str:
    """Compare the full steps until the target, a row per problem with runs of every arm."""
    known, compared = yardsticks()["lightbench"], ("corrected", "hybrid", "auto")
    lines = []
    for task, arms in grouped(rows).items():
        if arms.keys() < {BASE, *compared}:
            continue
        case, plain = known.case(task), arms[BASE]
        cells = [f"{_steps(arms[arm])}{_verdict(plain, arms[arm])}" for arm in compared]
        lines.append([
            f"`{task}`", f"{case.target:g}", f"{case.task.recipe.learning_rate:g}", case.published,
            str(len(plain)), _steps(plain), *cells, _milliseconds(plain),
            _milliseconds(arms["hybrid"]),
        ])  # fmt: skip
    titles = ["problem", "target", "rate", "AdamW in LightBench", "seeds", "plain",
              *(ARMS[arm].title for arm in compared), "ms per full step, plain",
              "ms, hybrid"]  # fmt: skip
    return markdown(titles, lines)


def never_worse(rows: Collection[Row]) -> str:
    """Count over problems and seeds where an arm reaches the target earlier, later or not."""
    lines = []
    for arm in ("corrected", "hybrid", "auto"):
        kinds = [
            _compared(arms[BASE][seed], row)
            for arms in grouped(rows).values() for seed, row in arms.get(arm, {}).items()
            if seed in arms.get(BASE, {})
        ]  # fmt: skip
        lines.append([ARMS[arm].title, *(str(kinds.count(kind)) for kind in KINDS)])
    return markdown(["arm", *KINDS], lines)


KINDS = ("only the arm reaches it", "earlier", "as early", "neither reaches it", "later",
         "only plain training reaches it")  # fmt: skip
"""How an arm compares with plain training of the same seed up to a target, best first."""


def _compared(plain: Row, arm: Row) -> str:
    before, after = plain["hit"], arm["hit"]
    if before is None or after is None:
        return KINDS[3] if before == after else KINDS[0] if before is None else KINDS[5]
    return KINDS[1] if after < before else KINDS[2] if after == before else KINDS[4]


def _verdict(plain: Runs, runs: Runs) -> str:
    worse = any(_compared(plain[s], runs[s]) in KINDS[4:] for s in runs.keys() & plain.keys())
    return " (later)" if worse else ""


def _reached(runs: Runs) -> int:
    return sum(row["hit"] is not None for row in runs.values())


def _steps(runs: Runs) -> str:
    """Return the mean full steps until the target, of the seeds that reach it; of all if none."""
    hits = [row["hit"] for row in runs.values() if row["hit"] is not None]
    if not hits:
        return f">{statistics.fmean(row['full_steps'] for row in runs.values()):,.0f}"
    some = "" if len(hits) == len(runs) else f", {len(hits)} of {len(runs)}"
    return f"{statistics.fmean(hits):,.0f}{some}"


def _ratio(arms: Mapping[str, Runs], arm: str) -> str:
    """Return the geometric mean over seeds of plain full steps per full step up to the target."""
    plain = arms.get(BASE, {})
    pairs = [(plain[s]["hit"], row["hit"]) for s, row in arms[arm].items() if s in plain]
    if not pairs or any(None in pair for pair in pairs):
        return NONE
    return f"{math.exp(statistics.fmean(math.log(p / a) for p, a in pairs)):.2f}"


def _milliseconds(runs: Runs) -> str:
    """Return processor time per full step, the median over seeds."""
    times = [1e3 * row["seconds"] / row["full_steps"] for row in runs.values()]
    return f"{statistics.median(times):.2f}"


def times(rows: Collection[Row]) -> list[str]:
    """Return seconds of the processor and of the clock, medians over seeds."""
    return [f"{statistics.median(row[f] for row in rows):.1f}" for f in ("seconds", "elapsed")]
