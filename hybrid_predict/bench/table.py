"""A suite's results as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hybrid_predict.bench.arms import ARMS, PLAIN
from hybrid_predict.bench.figures import Overall, Summary
from hybrid_predict.bench.plan import SETTINGS
from hybrid_predict.evidence import FEW_SEEDS, Speedup

NONE = "n/a"


def main_setting(summary: Summary) -> str:
    """The setting whose arms are compared in full."""
    return "tuned" if "tuned" in summary.settings else next(iter(summary.settings))


def blocks(results: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """What makes the blocks of a suite, by name."""
    suite = f"bench {results['suite']}"
    summary = Summary(results)
    return {
        f"{suite} source": partial(source, results),
        f"{suite} settings": partial(settings_table, summary),
        f"{suite} arms": partial(arms_table, summary),
        f"{suite} auto": partial(auto_table, summary),
        f"{suite} losses": partial(losses_table, summary),
        f"{suite} steps": partial(steps_table, results["steps"]),
    }


def source(results: Mapping[str, Any]) -> str:
    """Where the numbers come from: suite, seeds, cells and machine."""
    env, cells, seeds = results["environment"], results["cells"], results["seeds"]
    codes = len(results["code"])
    mixed = f" The runs come from {codes} states of the code." if codes > 1 else ""
    if results["suite"] == "smoke":
        mixed += " Runs of a few steps: they show that everything runs, and nothing else."
    hint = "" if seeds >= FEW_SEEDS else " So few seeds make every difference a hint."
    filled = "all" if cells["done"] == cells["planned"] else f"{cells['done']:,} of"
    return (
        f"Suite `{results['suite']}`, {seeds} paired seed{'s' * (seeds != 1)}, {filled} "
        f"{cells['planned']:,} runs done; torch {env['torch']}, Python {env['python']}, "
        f"{env['cpu_count']} CPU cores, one thread per run. In brackets: 95 % bootstrap intervals "
        f"over seeds.{hint}{mixed}"
    )


def settings_table(summary: Summary) -> str:
    """Speedup of the hybrid arm, a row per task and a column per setting."""
    titles = [SETTINGS[name].title for name in summary.settings]
    rows = [
        [f"`{task}`", *(_cell(summary, task, name, "hybrid") for name in summary.settings)]
        for task in summary.tasks
    ]
    overall = [summary.overall(name, "hybrid") for name in summary.settings]
    rows.append(["geometric mean", *(_mean(total) for total in overall)])
    rows.append(["worst task", *(_worst(total) for total in overall)])
    return _table(["task", *titles], rows)


def arms_table(summary: Summary) -> str:
    """Speedup of every arm in the main setting, a row per arm and a column per task."""
    rows, setting = [], main_setting(summary)
    for arm in summary.settings[setting]:
        if arm not in PLAIN:
            total = summary.overall(setting, arm)
            cells = [_cell(summary, task, setting, arm) for task in summary.tasks]
            rows.append([ARMS[arm].title, *cells, _mean(total), _worst(total)])
    tasks = [f"`{task}`" for task in summary.tasks]
    return _table(["arm", *tasks, "geometric mean", "worst task"], rows)


def auto_table(summary: Summary) -> str:
    """How far ``speedup="auto"`` compressed, and whether it kept the full run's quality."""
    rows = []
    for task in summary.tasks:
        for setting in summary.settings:
            found = summary.figures(task, setting, "auto")
            if found is None or found.speedup is None:
                continue
            total = summary.budgets(task, setting)[PLAIN.index("plain")]
            compression, worth = total / found.cost, found.speedup
            kept = "in the mean" if worth.value >= compression else "no"
            if worth.low is not None and worth.low >= compression:
                kept = "yes"
            rows.append([
                f"`{task}`", SETTINGS[setting].title, f"{total:,}", f"{found.full_steps:,.0f}",
                f"{compression:.2f}", speedup_text(worth), kept,
            ])  # fmt: skip
    titles = ["task", "setting", "full run", "full steps", "compressed by", "worth",
              "quality of the full run kept"]  # fmt: skip
    return _table(titles, rows)


def losses_table(summary: Summary) -> str:
    """Loss, cost, time and memory of every arm in every setting and task."""
    rows = []
    for task in summary.tasks:
        for setting, arms in summary.settings.items():
            for arm in arms:
                if (found := summary.figures(task, setting, arm)) is None:
                    continue
                loss = found.loss
                mean = NONE if loss["mean"] is None else f"{loss['mean']:.4f}"
                sd = "" if loss["sd"] is None else f" ± {loss['sd']:.4f}"
                lost = f" ({found.diverged} diverged)" if found.diverged else ""
                rate = f"{found.rate:g}" + (f" x {found.hidden:g}" if found.hidden != 1 else "")
                rows.append([
                    f"`{task}`", setting, ARMS[arm].title, rate, f"{found.cost:,.0f}",
                    f"{mean}{sd}{lost}", f"{found.seconds:.1f}",
                    NONE if found.overhead is None else f"{found.overhead:.2f}",
                    f"{found.memory / 2**20:,.1f}",
                ])  # fmt: skip
    titles = ["task", "setting", "arm", "rate (x hidden)", "cost", "final loss, mean ± sd",
              "seconds", "seconds per step / `short`", "memory, MiB"]  # fmt: skip
    return _table(titles, rows)


def steps_table(steps: Mapping[str, Any]) -> str:
    """What forecasts add to a full step, a row per task."""
    rows = []
    for task, found in steps.items():
        low, high = found["quartiles"]
        memory = [f"{found['memory'][name] / 2**20:,.1f}" for name in ("plain", "hybrid")]
        waits = [found["waits"] or "none"] if "waits" in found else []
        rows.append([
            f"`{task}`", f"{found['parameters']:,}", f"{found['plain_ms']:.1f}",
            f"{found['ratio']:.3f} [{low:.3f}, {high:.3f}]", *memory, *waits,
        ])  # fmt: skip
    titles = ["task", "parameters", "plain full step, ms", "with forecast / plain [quartiles]",
              "MiB, plain", "MiB, hybrid"]  # fmt: skip
    if any("waits" in found for found in steps.values()):
        titles.append("waits of the host")
    return _table(titles, rows)


def _cell(summary: Summary, task: str, setting: str, arm: str) -> str:
    found = summary.figures(task, setting, arm)
    return NONE if found is None or found.speedup is None else speedup_text(found.speedup)


def speedup_text(found: Speedup) -> str:
    """A speedup with its interval."""
    interval = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.bound}{found.value:.2f}{interval}"


def _mean(total: Overall | None) -> str:
    return NONE if total is None else f"**{total.bound}{total.value:.2f}**"


def _worst(total: Overall | None) -> str:
    return NONE if total is None else f"`{total.worst}` {total.worst_value:.2f}"


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
