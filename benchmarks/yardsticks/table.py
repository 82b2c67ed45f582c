"""Markdown tables of the yardsticks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from benchmarks.arms import ARMS, PLAIN
from benchmarks.digests import states
from benchmarks.figures import of_arm
from benchmarks.plan import Row
from benchmarks.table import NONE, markdown, speedup_text
from benchmarks.yardsticks import NAMES, yardsticks
from benchmarks.yardsticks.hits import BASE, Runs, grouped, never_worse, targets, times, traps
from hybrid_predict.report.shared import mean_and_sd
from hybrid_predict.runs.evidence import FEW_SEEDS, spread


def blocks(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    kept = list(rows)
    mine = {name: [row for row in kept if row["setting"] == name] for name in NAMES}
    return {
        "yardsticks source": partial(source, kept),
        "yardsticks headline": partial(headline, mine["nanogpt"]),
        "yardsticks nanogpt": partial(qualities, mine["nanogpt"], "nanogpt"),
        "yardsticks deepobs": partial(qualities, mine["deepobs"], "deepobs"),
        "yardsticks algoperf": partial(targets, mine["algoperf"]),
        "yardsticks lightbench": partial(traps, mine["lightbench"]),
        "yardsticks never worse": partial(never_worse, mine["lightbench"]),
    }


def source(rows: Collection[Row]) -> str:
    """Tell how many runs there are, from how many seeds and states of the code."""
    seeds = {name: len({r["seed"] for r in rows if r["setting"] == name}) for name in NAMES}
    codes = states(rows)
    few = [name for name, count in seeds.items() if count < FEW_SEEDS]
    hint = f" Below {FEW_SEEDS} seeds, differences are hints: {', '.join(few)}." if few else ""
    mixed = f" Those with the plug-in come from {codes} states of the code." if codes > 1 else ""
    shown = ", ".join(f"{name} {count}" for name, count in seeds.items())
    return f"{len(rows):,} runs, one thread each; seeds: {shown}.{mixed}{hint}"


def headline(rows: Collection[Row]) -> str:
    """Tell what the plug-in is worth with nanoGPT's recipe."""
    lines = [
        f"the default is worth {_speedup(arms, 'hybrid')} times as many full steps, corrected "
        f"updates alone {_speedup(arms, 'corrected')} times ({len(arms['hybrid'])} seeds)."
        for arms in grouped(rows).values()
    ]
    return f"With nanoGPT's published recipe for CPUs {' '.join(lines)}"


def qualities(rows: Collection[Row], name: str) -> str:
    """Compare final losses after each arm's full steps, a row per task and arm."""
    known = yardsticks()[name]
    lines = [
        [f"`{task}`", ARMS[arm].title, str(len(runs)), *_counts(runs.values()),
         _losses(runs.values()), _speedup(arms, arm),
         known.published(task) if arm == BASE else "", *times(runs.values())]
        for task, arms in grouped(rows).items() for arm, runs in arms.items()
    ]  # fmt: skip
    titles = ["task", "arm", "seeds", "full steps", "predicted steps", "final loss, mean ± sd",
              "speedup at equal quality", "for comparison", "processor seconds",
              "seconds"]  # fmt: skip
    return markdown(titles, lines)


def _speedup(arms: Mapping[str, Runs], arm: str) -> str:
    found = of_arm(arms, [name for name in PLAIN if name in arms], arm)
    return NONE if found is None else speedup_text(found)


def _counts(rows: Collection[Row]) -> list[str]:
    fields = ("full_steps", "predicted_steps")
    return [f"{statistics.fmean(row[field] for row in rows):,.0f}" for field in fields]


def _losses(rows: Collection[Row]) -> str:
    finite = [row["loss"] for row in rows if row["loss"] is not None]
    lost = f" ({len(rows) - len(finite)} diverged)" if len(finite) < len(rows) else ""
    return f"{mean_and_sd(spread(finite), 4) if finite else NONE}{lost}"
