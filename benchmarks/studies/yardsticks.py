"""Yardsticks that others made: plain training and the plug-in by their published recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from benchmarks.arms import ARMS
from benchmarks.cells import Line
from benchmarks.gains import Figures, Summary
from benchmarks.optimizers import Rates
from benchmarks.plan import Row, Selection, number
from benchmarks.tasks.language import PUBLISHED, nanogpt
from benchmarks.tasks.lightbench import LIGHTBENCH
from benchmarks.views import NONE, loss_text, states_text, steps_text, view
from hybrid_predict.runs.evidence import FEW_SEEDS

NAMES = ("nanogpt", "lightbench")  # settings, in order of importance

COMPARED = ("corrected", "hybrid", "auto")

KINDS = (
    "only the arm reaches it",
    "earlier",
    "as early",
    "neither reaches it",
    "later",
    "only plain training reaches it",
)
"""How an arm compares with plain training of the same seed up to a target, best first."""

PROBLEMS = {problem.name: problem for problem in LIGHTBENCH}


def lines(chosen: Selection) -> Iterator[Line]:
    """Yield all runs at their published rates; up to a target each may take T full steps."""
    task = nanogpt(chosen.text)
    rates = Rates(task.recipe.learning_rate)
    for arm in ("short", "plain", "plain-double", *COMPARED, "muon"):
        yield Line(task, "nanogpt", arm, 5, rates)
    for problem in LIGHTBENCH:
        rates = Rates(problem.recipe.learning_rate)
        for arm in ("plain", *COMPARED):
            steps = round(problem.steps / ARMS[arm].share)
            seeds = 1 if problem.fixed else 2
            yield Line(problem, "lightbench", arm, seeds, rates, steps=steps)


def blocks(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    kept = [row for row in rows if row["setting"] == "nanogpt" or row["task"] in PROBLEMS]
    of_gpt, of_traps = (Summary(row for row in kept if row["setting"] == name) for name in NAMES)
    return {
        "yardsticks source": partial(source, kept),
        "yardsticks headline": partial(headline, of_gpt),
        "yardsticks shortly": partial(shortly, of_gpt),
        "yardsticks nanogpt": partial(qualities, of_gpt),
        "yardsticks lightbench": partial(traps, of_traps),
        "yardsticks never worse": partial(never_worse, of_traps),
    }


def source(rows: list[Row]) -> str:
    """Tell how many runs there are, from how many seeds and states of the code."""
    seeds = {name: len({r["seed"] for r in rows if r["setting"] == name}) for name in NAMES}
    few = [name for name, count in seeds.items() if count < FEW_SEEDS]
    hint = f" Below {FEW_SEEDS} seeds, differences are hints: {', '.join(few)}." if few else ""
    shown = ", ".join(f"{name} {count}" for name, count in seeds.items())
    return f"{len(rows):,} runs, one thread each; seeds: {shown}.{states_text(rows)}{hint}"


def _beside_default(summary: Summary, arm: str) -> tuple[Figures, Figures] | None:
    """Return the default and another arm by nanoGPT's recipe, if there are runs of both."""
    task = next(iter(summary.tasks), "")
    hybrid, other = (summary.figures(task, name) for name in ("hybrid", arm))
    return None if hybrid is None or other is None else (hybrid, other)


def headline(summary: Summary) -> str:
    """Tell what the plug-in is worth with nanoGPT's recipe."""
    if (pair := _beside_default(summary, "corrected")) is None:
        return NONE
    hybrid, corrected = pair
    return (
        "With nanoGPT's published recipe for CPUs the default is worth "
        f"{hybrid.speedup or NONE} times as many full steps, corrected updates alone "
        f"{corrected.speedup or NONE} times ({len(hybrid.rows)} seeds)."
    )


def shortly(summary: Summary) -> str:
    """Compare the default with the longest plain runs by nanoGPT's recipe, in a sentence."""
    if (pair := _beside_default(summary, "plain-double")) is None:
        return NONE
    hybrid, longest = pair
    return (
        "With [nanoGPT's recipe for CPUs](docs/yardsticks.md), on a text of the same author, the "
        f"default ends at a loss of {hybrid.mean('loss'):.2f} after {hybrid.full_steps:,.0f} full "
        f"steps; plain training ends at {longest.mean('loss'):.2f} after {longest.full_steps:,.0f}."
    )


def qualities(summary: Summary) -> str:
    """Compare final losses after each arm's full steps, a row per task and arm."""
    return view(
        {
            "task": f"`{f.place.task}`",
            "arm": ARMS[f.place.arm].title,
            "seeds": str(len(f.rows)),
            "full steps": steps_text(f),
            "predicted steps": steps_text(f, "predicted_steps"),
            "final loss, mean ± sd": loss_text(f),
            "speedup at equal quality": str(f.speedup or NONE),
            "for comparison": PUBLISHED if f.place.arm == "plain" else "",
        }
        for f in summary.in_order()
    )


def traps(summary: Summary) -> str:
    """Compare the full steps until the target, a row per problem with runs of every arm."""
    rows = []
    for task in summary.tasks:
        found = [summary.figures(task, arm) for arm in ("plain", *COMPARED)]
        known = [figures for figures in found if figures is not None]
        if len(known) < len(found):
            continue
        plain, *others = known
        problem = PROBLEMS[task]
        lost = problem.family == "wide_linear"  # in its own table; the closest try has the rate
        row = {
            "problem": f"`{task}`",
            "target": f"{problem.target:g}",
            "rate": f"{problem.recipe.learning_rate:g}",
            "AdamW in LightBench": "never won" if lost else "won",
            "seeds": str(len(plain.rows)),
            "plain": _steps(plain),
        }
        for f in others:
            later = any(kind in KINDS[4:] for kind in compared(plain, f))
            row[ARMS[f.place.arm].title] = _steps(f) + " (later)" * later
        rows.append(row)
    return view(rows)


def never_worse(summary: Summary) -> str:
    """Count over problems and seeds where an arm reaches the target earlier, later or not."""
    rows = []
    for arm in COMPARED:
        found = []
        for task in summary.tasks:
            plain = summary.figures(task, "plain")
            figures = summary.figures(task, arm)
            if plain is not None and figures is not None:
                found += compared(plain, figures)
        counts = {kind: str(found.count(kind)) for kind in KINDS}
        rows.append({"arm": ARMS[arm].title, **counts})
    return view(rows)


def compared(plain: Figures, arm: Figures) -> list[str]:
    """Return one of :data:`KINDS` for each seed of both."""
    found = []
    for seed in plain.rows.keys() & arm.rows.keys():
        before, after = (number(runs.rows[seed]["hit"]) for runs in (plain, arm))
        if before == after:
            kind = 3 if math.isinf(before) else 2
        elif after < before:
            kind = 0 if math.isinf(before) else 1
        else:
            kind = 5 if math.isinf(after) else 4
        found.append(KINDS[kind])
    return found


def _steps(figures: Figures) -> str:
    """Return the mean full steps until the target, of the seeds that reach it; of all if none."""
    hits = [row["hit"] for row in figures.rows.values() if row["hit"] is not None]
    if not hits:
        return f">{figures.full_steps:,.0f}"
    some = "" if len(hits) == len(figures.rows) else f", {len(hits)} of {len(figures.rows)}"
    return f"{sum(hits) / len(hits):,.0f}{some}"
