"""Markdown tables of the results of a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.arms import ARMS, MECHANISMS, PLAIN
from benchmarks.figures import Figures, Overall, Summary
from benchmarks.step_cost import ADDED, WAYS
from benchmarks.views import NONE, speedup_text, view
from hybrid_predict.runs.evidence import FEW_SEEDS, mean_and_sd


def main_setting(summary: Summary) -> str:
    """Return the setting whose arms are all compared."""
    return "tuned" if "tuned" in summary.settings else next(iter(summary.settings))


def blocks(results: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Return a function for the text of each block of a suite, by name."""
    suite = f"bench {results['suite']}"
    summary = Summary(results)
    return {
        f"{suite} source": partial(source, results),
        f"{suite} headline": partial(headline, summary),
        f"{suite} mechanisms": partial(mechanisms_table, summary, results["steps"]),
        f"{suite} arms": partial(arms_table, summary),
        f"{suite} losses": partial(losses_table, summary),
        f"{suite} steps": partial(steps_table, results["steps"]),
    }


def source(results: Mapping[str, Any]) -> str:
    """Describe the source of the numbers: suite, seeds, cells and machine."""
    env, cells, seeds = results["environment"], results["cells"], results["seeds"]
    codes = {which: len(digests) for which, digests in results["code"].items() if len(digests) > 1}
    states = " and ".join(f"those {which} from {n}" for which, n in codes.items())
    mixed = f" The runs come from several states of the code: {states}." if codes else ""
    if results["suite"] == "smoke":
        mixed += " Runs of a few steps show only that everything runs."
    hint = "" if seeds >= FEW_SEEDS else " So few seeds make every difference a hint."
    filled = "all" if cells["done"] == cells["planned"] else f"{cells['done']:,} of"
    some = "" if filled == "all" else " Where fewer seeds are named, differences are hints."
    return (
        f"Suite `{results['suite']}`, {seeds} paired seed{'s' * (seeds != 1)}, {filled} "
        f"{cells['planned']:,} runs done; torch {env['torch']}, Python {env['python']}, "
        f"{env['cpu_count']} CPU cores, one thread per run. In brackets: 95 % bootstrap intervals "
        f"over seeds.{some}{hint}{mixed}"
    )


def headline(summary: Summary) -> str:
    """Tell in one paragraph what the arms reach on the first task of a suite."""
    task, setting = summary.tasks[0], main_setting(summary)
    names = ("plain", "hybrid", "corrected")
    figures = {name: summary.figures(task, setting, name) for name in names}
    if (hybrid := figures["hybrid"]) is None or (plain := figures["plain"]) is None:
        return NONE
    saved = 1 - hybrid.full_steps / plain.full_steps
    corrected = figures["corrected"]
    alone = "" if corrected is None else (
        f" Corrected updates alone reach {_loss(summary, corrected)} in {corrected.full_steps:,.0f}"
        f" full steps ({_cell(summary, task, setting, 'corrected')} times)."
    )  # fmt: skip
    return (
        f"**{hybrid.full_steps:,.0f} full steps and {hybrid.predicted_steps:,.0f} predicted ones "
        f"instead of {plain.full_steps:,.0f} full steps ({saved:.0%} fewer), final loss "
        f"{_loss(summary, hybrid)} instead of {_loss(summary, plain)}** (`{task}`, "
        f"{hybrid.loss['n']} paired seeds). Plain training needs "
        f"{_cell(summary, task, setting, 'hybrid')} times as many full steps for that loss, each "
        f"run with a schedule of its own.{alone}"
    )


def mechanisms_table(summary: Summary, steps: Mapping[str, Any]) -> str:
    """Compare the mechanisms in the main setting, a row per task and arm.

    Seconds are the number of full steps times their cost as `step_cost.measure` finds it.
    """
    rows, setting = [], main_setting(summary)
    for task in summary.tasks:
        for arm, way in MECHANISMS.items():
            if (figures := summary.figures(task, setting, arm)) is None:
                continue
            seconds = NONE
            if way is not None and task in steps:
                ratio = 1.0 if way == "plain" else steps[task][way]["ratio"]
                seconds = f"{figures.full_steps * ratio * steps[task]['plain_ms'] / 1e3:.1f}"
            rows.append(
                {
                    "task": f"`{task}`",
                    "arm": ARMS[arm].title,
                    "full steps": f"{figures.full_steps:,.0f}",
                    "predicted steps (length)": _predicted(figures),
                    "seconds": seconds,
                    "final loss, mean ± sd": _loss(summary, figures),
                    "speedup at equal quality": _cell(summary, task, setting, arm),
                }
            )
    return view(rows)


def _predicted(figures: Figures) -> str:
    """Format mean predicted steps, and their mean length in lengths of the drift where known."""
    length = "" if figures.length is None else f" ({figures.length:.2f})"
    return f"{figures.predicted_steps:,.0f}{length}"


def arms_table(summary: Summary) -> str:
    """List the speedup of every arm in the main setting, a row per arm, a column per task."""
    setting = main_setting(summary)
    return view(
        {
            "arm": ARMS[arm].title,
            **{f"`{task}`": _cell(summary, task, setting, arm) for task in summary.tasks},
            "geometric mean": _mean(summary.overall(setting, arm)),
            "worst task": _worst(summary.overall(setting, arm)),
        }
        for arm in summary.settings[setting]
        if arm not in PLAIN
    )


def losses_table(summary: Summary) -> str:
    """List loss, steps, time and memory of every arm in every setting and task."""
    rows = []
    for task in summary.tasks:
        for setting, arms in summary.settings.items():
            for arm in arms:
                if (figures := summary.figures(task, setting, arm)) is None:
                    continue
                hidden = f" x {figures.hidden:g}" if figures.hidden != 1 else ""
                rows.append(
                    {
                        "task": f"`{task}`",
                        "setting": setting,
                        "arm": ARMS[arm].title,
                        "rate (x hidden)": f"{figures.rate:g}{hidden}",
                        "full steps": f"{figures.full_steps:,.0f}",
                        "predicted steps": f"{figures.predicted_steps:,.0f}",
                        "final loss, mean ± sd": _loss(summary, figures),
                        "seconds": f"{figures.seconds:.1f}",
                        "memory, MiB": f"{figures.memory / 2**20:,.1f}",
                    }
                )
    return view(rows)


def steps_table(steps: Mapping[str, Any]) -> str:
    """List the cost of the plug-in in a full step, a row per task."""
    waits = any("waits" in cost[way] for cost in steps.values() for way in ADDED)
    return view(
        {
            "task": f"`{task}`",
            "parameters": f"{cost['parameters']:,}",
            "plain full step, ms": f"{cost['plain_ms']:.1f}",
            **{f"{way} / plain": _ratio(cost[way]) for way in ADDED},
            **{f"MiB, {way}": f"{cost[way]['memory'] / 2**20:,.1f}" for way in WAYS},
            **{f"waits of the host, {way}": cost[way]["waits"] or "none" for way in ADDED if waits},
        }
        for task, cost in steps.items()
    )


def _ratio(cost: Mapping[str, Any]) -> str:
    low, high = cost["quartiles"]
    return f"{cost['ratio']:.3f} [{low:.3f}, {high:.3f}]"


def _loss(summary: Summary, figures: Figures) -> str:
    loss = NONE if figures.loss["mean"] is None else mean_and_sd(figures.loss, 4)
    lost = f" ({figures.diverged} diverged)" if figures.diverged else ""
    return f"{loss}{lost}{_fewer(summary, figures.loss['n'] + figures.diverged)}"


def _fewer(summary: Summary, seeds: int) -> str:
    """Return a note on the number of seeds if it is lower than the suite's."""
    return f" ({seeds} seed{'s' * (seeds != 1)})" if seeds < summary.seeds else ""


def _cell(summary: Summary, task: str, setting: str, arm: str) -> str:
    figures = summary.figures(task, setting, arm)
    if figures is None or figures.speedup is None:
        return NONE
    return speedup_text(figures.speedup) + _fewer(summary, figures.speedup.seeds)


def _mean(total: Overall | None) -> str:
    return NONE if total is None else f"**{total.bound}{total.value:.2f}**"


def _worst(total: Overall | None) -> str:
    return NONE if total is None else f"`{total.worst}` {total.worst_value:.2f}"
