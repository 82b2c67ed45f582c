"""Markdown tables of the results of a suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.arms import ARMS, MECHANISMS, PLAIN
from benchmarks.figures import Figures, Overall, Summary
from benchmarks.step_cost import ADDED, WAYS
from hybrid_predict.report.shared import mean_and_sd
from hybrid_predict.runs.evidence import FEW_SEEDS, Speedup

NONE = "n/a"


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
        f"{suite} brief": partial(mechanisms_table, summary, results["steps"], BRIEF),
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


BRIEF = ("short", "corrected", "predicted-only", "hybrid")
"""The arms that tell a newcomer what each mechanism does."""


def mechanisms_table(
    summary: Summary, steps: Mapping[str, Any], arms: Sequence[str] = tuple(MECHANISMS)
) -> str:
    """Compare the mechanisms in the main setting, a row per task and arm of ``arms``.

    Seconds are the number of full steps times their cost as `step_cost.measure` finds it.
    """
    rows, setting = [], main_setting(summary)
    for task in summary.tasks:
        for arm in arms:
            way = MECHANISMS[arm]
            if (figures := summary.figures(task, setting, arm)) is None:
                continue
            seconds = NONE
            if way is not None and task in steps:
                ratio = 1.0 if way == "plain" else steps[task][way]["ratio"]
                seconds = f"{figures.full_steps * ratio * steps[task]['plain_ms'] / 1e3:.1f}"
            rows.append([
                f"`{task}`", ARMS[arm].title, f"{figures.full_steps:,.0f}",
                _predicted(figures), seconds, _loss(summary, figures),
                _cell(summary, task, setting, arm),
            ])  # fmt: skip
    titles = ["task", "arm", "full steps", "predicted steps (length)", "seconds",
              "final loss, mean ± sd", "speedup at equal quality"]  # fmt: skip
    return markdown(titles, rows)


def _predicted(figures: Figures) -> str:
    """Format mean predicted steps, and their mean length in lengths of the drift where known."""
    length = "" if figures.length is None else f" ({figures.length:.2f})"
    return f"{figures.predicted_steps:,.0f}{length}"


def arms_table(summary: Summary) -> str:
    """List the speedup of every arm in the main setting, a row per arm, a column per task."""
    rows, setting = [], main_setting(summary)
    for arm in summary.settings[setting]:
        if arm not in PLAIN:
            total = summary.overall(setting, arm)
            cells = [_cell(summary, task, setting, arm) for task in summary.tasks]
            rows.append([ARMS[arm].title, *cells, _mean(total), _worst(total)])
    tasks = [f"`{task}`" for task in summary.tasks]
    return markdown(["arm", *tasks, "geometric mean", "worst task"], rows)


def losses_table(summary: Summary) -> str:
    """List loss, steps, time and memory of every arm in every setting and task."""
    rows = []
    for task in summary.tasks:
        for setting, arms in summary.settings.items():
            for arm in arms:
                if (figures := summary.figures(task, setting, arm)) is None:
                    continue
                rate = f"{figures.rate:g}" + (
                    f" x {figures.hidden:g}" if figures.hidden != 1 else ""
                )
                rows.append([
                    f"`{task}`", setting, ARMS[arm].title, rate, f"{figures.full_steps:,.0f}",
                    f"{figures.predicted_steps:,.0f}", _loss(summary, figures),
                    f"{figures.seconds:.1f}", f"{figures.memory / 2**20:,.1f}",
                ])  # fmt: skip
    titles = ["task", "setting", "arm", "rate (x hidden)", "full steps", "predicted steps",
              "final loss, mean ± sd", "seconds", "memory, MiB"]  # fmt: skip
    return markdown(titles, rows)


def steps_table(steps: Mapping[str, Any]) -> str:
    """List the cost of the plug-in in a full step, a row per task."""
    rows, waits = [], any("waits" in cost[way] for cost in steps.values() for way in ADDED)
    for task, cost in steps.items():
        ratios = [(cost[way]["ratio"], *cost[way]["quartiles"]) for way in ADDED]
        rows.append([
            f"`{task}`", f"{cost['parameters']:,}", f"{cost['plain_ms']:.1f}",
            *(f"{middle:.3f} [{low:.3f}, {high:.3f}]" for middle, low, high in ratios),
            *(f"{cost[way]['memory'] / 2**20:,.1f}" for way in WAYS),
            *([cost[way]["waits"] or "none" for way in ADDED] if waits else []),
        ])  # fmt: skip
    titles = ["task", "parameters", "plain full step, ms", *(f"{way} / plain" for way in ADDED),
              *(f"MiB, {way}" for way in WAYS),
              *(f"waits of the host, {way}" for way in ADDED if waits)]  # fmt: skip
    return markdown(titles, rows)


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


def speedup_text(speedup: Speedup) -> str:
    """Format a speedup with its interval."""
    interval = "" if speedup.low is None else f" [{speedup.low:.2f}, {speedup.high:.2f}]"
    return f"{speedup.bound}{speedup.value:.2f}{interval}"


def _mean(total: Overall | None) -> str:
    return NONE if total is None else f"**{total.bound}{total.value:.2f}**"


def _worst(total: Overall | None) -> str:
    return NONE if total is None else f"`{total.worst}` {total.worst_value:.2f}"


def markdown(titles: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
