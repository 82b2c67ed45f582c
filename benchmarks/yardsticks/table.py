"""Markdown tables of the yardsticks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from benchmarks.arms import ARMS, PLAIN
from benchmarks.digests import states
from benchmarks.figures import of_arm
from benchmarks.plan import Row
from benchmarks.views import NONE, markdown, speedup_text, view
from benchmarks.yardsticks import NAMES, yardsticks
from hybrid_predict.runs.evidence import FEW_SEEDS, mean_and_sd, spread

Runs = dict[int, Row]
"""Rows of one task and arm, by seed."""

BASE = "plain"


def grouped(rows: Iterable[Row]) -> dict[str, dict[str, Runs]]:
    """Return rows by task, arm and seed; arms in the order of the first run."""
    found: dict[str, dict[str, Runs]] = {}
    for row in rows:
        found.setdefault(row["task"], {}).setdefault(row["arm"], {})[row["seed"]] = row
    return found


def blocks(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    kept = [row for row in rows if row["setting"] in NAMES]
    mine = {name: [row for row in kept if row["setting"] == name] for name in NAMES}
    return {
        "yardsticks source": partial(source, kept),
        "yardsticks headline": partial(headline, mine["nanogpt"]),
        "yardsticks nanogpt": partial(qualities, mine["nanogpt"], "nanogpt"),
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
    return view(
        {
            "task": f"`{task}`",
            "arm": ARMS[arm].title,
            "seeds": str(len(runs)),
            "full steps": _mean(runs, "full_steps"),
            "predicted steps": _mean(runs, "predicted_steps"),
            "final loss, mean ± sd": _losses(runs.values()),
            "speedup at equal quality": _speedup(arms, arm),
            "for comparison": known.published(task) if arm == BASE else "",
            "processor seconds": _median(runs, "seconds"),
            "seconds": _median(runs, "elapsed"),
        }
        for task, arms in grouped(rows).items()
        for arm, runs in arms.items()
    )


def _speedup(arms: Mapping[str, Runs], arm: str) -> str:
    return speedup_text(of_arm(arms, [name for name in PLAIN if name in arms], arm))


def _mean(runs: Runs, field: str) -> str:
    return f"{statistics.fmean(row[field] for row in runs.values()):,.0f}"


def _median(runs: Runs, field: str) -> str:
    return f"{statistics.median(row[field] for row in runs.values()):.1f}"


def _losses(rows: Collection[Row]) -> str:
    finite = [row["loss"] for row in rows if row["loss"] is not None]
    lost = f" ({len(rows) - len(finite)} diverged)" if len(finite) < len(rows) else ""
    return f"{mean_and_sd(spread(finite), 4) if finite else NONE}{lost}"


def traps(rows: Collection[Row]) -> str:
    """Compare the full steps until the target, a row per problem with runs of every arm."""
    known = yardsticks()["lightbench"]
    compared = ("corrected", "hybrid", "auto")
    lines = []
    for task, arms in grouped(rows).items():
        if arms.keys() < {BASE, *compared}:
            continue
        case = known.case(task)
        plain = arms[BASE]
        lines.append(
            {
                "problem": f"`{task}`",
                "target": f"{case.target:g}",
                "rate": f"{case.task.recipe.learning_rate:g}",
                "AdamW in LightBench": case.published,
                "seeds": str(len(plain)),
                "plain": _steps(plain),
                **{
                    ARMS[arm].title: f"{_steps(arms[arm])}{_verdict(plain, arms[arm])}"
                    for arm in compared
                },
                "ms per full step, plain": _milliseconds(plain),
                "ms, hybrid": _milliseconds(arms["hybrid"]),
            }
        )
    return view(lines)


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


def _steps(runs: Runs) -> str:
    """Return the mean full steps until the target, of the seeds that reach it; of all if none."""
    hits = [row["hit"] for row in runs.values() if row["hit"] is not None]
    if not hits:
        return f">{statistics.fmean(row['full_steps'] for row in runs.values()):,.0f}"
    some = "" if len(hits) == len(runs) else f", {len(hits)} of {len(runs)}"
    return f"{statistics.fmean(hits):,.0f}{some}"


def _milliseconds(runs: Runs) -> str:
    """Return processor time per full step, the median over seeds."""
    times = [1e3 * row["seconds"] / row["full_steps"] for row in runs.values()]
    return f"{statistics.median(times):.2f}"
