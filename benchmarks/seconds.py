"""Gains of the default in seconds, and the first picture of the README.

Run with: python -m benchmarks.seconds
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import RESULTS, load
from benchmarks.figures import Summary
from benchmarks.plan import SETTINGS
from benchmarks.plot import (
    CORRECTED_COLOR,
    HYBRID_COLOR,
    OTHER_COLOR,
    PLAIN_COLOR,
    save_figure,
    tidy,
)
from benchmarks.table import main_setting, markdown
from hybrid_predict.report.shared import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUITES = ("core", "wide", "fresh")

PICTURE, SOURCE, TASK = "first.png", "bench-core.json", "gpt-0.2m"
"""File of the picture, the results that it shows, and the task."""

_LINE = ("plain-half", "short", "plain", "plain-double")
_POINTS = {
    "corrected": ("corrected", CORRECTED_COLOR, "s"),
    "hybrid": ("default", HYBRID_COLOR, "D"),
    "muon": ("Muon, tuned", OTHER_COLOR, "^"),
}
"""Arms of plain training, and label, color and marker of the others."""


class Gain(NamedTuple):
    """The gain of the default on one task, at equal quality.

    ``ms`` are those of a plain full step. ``seconds`` is the gain in full steps, divided by what a
    full step of the default takes, with its predicted steps, in plain ones. A run that fell back
    to plain training is as fast as it.
    """

    task: str
    ms: float
    steps: float
    seconds: float
    fell_back: bool


def gains() -> Iterator[Gain]:
    """Yield the gains on all tasks."""
    for suite in SUITES:
        results = load(f"bench-{suite}.json")
        summary = Summary(results)
        setting = main_setting(summary)
        for task in summary.tasks:
            figures = summary.figures(task, setting, "hybrid")
            if figures is None or figures.speedup is None or task not in results["steps"]:
                continue
            plain, hybrid = (summary.runs(task, setting, arm) for arm in ("plain", "hybrid"))
            fell_back = all(hybrid[seed]["loss"] == row["loss"] for seed, row in plain.items())
            steps, gain = results["steps"][task], figures.speedup.value
            ratio = 1.0 if fell_back else steps["both"]["ratio"]
            yield Gain(task, steps["plain_ms"], gain, gain / ratio, fell_back)


def table() -> str:
    """Return the gains as a Markdown table, from the slowest full steps to the fastest."""
    found = sorted(gains(), key=lambda gain: -gain.ms)
    rows = [
        [f"`{g.task}`", f"{g.ms:.1f}", f"{g.steps:.2f}" + ", fell back" * g.fell_back,
         f"{g.seconds:.2f}"]
        for g in found
    ]  # fmt: skip
    rows.append([
        "geometric mean", "", f"{geometric_mean([g.steps for g in found]):.2f}",
        f"{geometric_mean([g.seconds for g in found]):.2f}",
    ])  # fmt: skip
    slower = [f"`{g.task}`" for g in found if g.seconds < 1.0 and not g.fell_back]
    named = f"{', '.join(slower[:-1])} and {slower[-1]}" if len(slower) > 1 else "".join(slower)
    said = f"On {len(slower)} of {len(found)} tasks it takes longer than plain training: {named}."
    return markdown(["task", "plain full step, ms", "gain in full steps", "in seconds"], rows) + (
        f"\n\n{said}" if slower else ""
    )


def plot() -> Figure:
    """Draw final losses against full steps, and against seconds; a point is a run's end."""
    summary = Summary(results := load(SOURCE))
    setting, steps = main_setting(summary), results["steps"][TASK]
    figure = new_figure(figsize=(6.0, 3.2))  # letters that a phone can show
    for axes, in_seconds in zip(figure.subplots(1, 2, sharey=True), (False, True), strict=True):
        for arms, (label, color, marker) in (
            (_LINE, ("plain training", PLAIN_COLOR, "o")),
            *(((arm,), style) for arm, style in _POINTS.items()),
        ):
            way = {"hybrid": "both", "corrected": "corrected"}.get(arms[0])
            if in_seconds and arms[0] == "muon":  # its steps were not timed side by side
                continue
            cost = steps["plain_ms"] / 1e3 * (steps[way]["ratio"] if way else 1.0)
            known = [f for arm in arms if (f := summary.figures(TASK, setting, arm)) is not None]
            axes.errorbar(
                [f.full_steps * (cost if in_seconds else 1.0) for f in known],
                [f.loss["mean"] for f in known], [f.loss["sd"] or 0.0 for f in known],
                color=color, marker=marker, capsize=3, label=label,
            )  # fmt: skip
        axes.set_xlabel("seconds on one thread" if in_seconds else "full steps")
        axes.set_xlim(left=0)
        tidy(axes)
    figure.axes[0].set_ylabel("final validation loss")
    figure.axes[0].legend(frameon=False, fontsize=9, handlelength=1.2)
    figure.suptitle(f"{TASK}, {SETTINGS[setting].title}, {results['seeds']} seeds", fontsize=10)
    return figure


if __name__ == "__main__":
    path: Path = RESULTS / PICTURE
    save_figure(plot(), path, RESULTS / SOURCE)
    print(f"Figure: {path}\n\n{table()}")
