"""Figure of the results of a suite: losses against full steps, and speedups."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.arms import ARMS, PLAIN
from benchmarks.figures import Summary
from benchmarks.suites import SETTINGS
from benchmarks.table import main_setting
from hybrid_predict.runs.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN_COLOR, CORRECTED_COLOR = "#264653", "#edae49"
HYBRID_COLOR, OTHER_COLOR = "#d1495b", "#8a8f98"
_OURS = {
    "corrected": ("corrected", CORRECTED_COLOR),
    "hybrid": ("+ predicted (default)", HYBRID_COLOR),
}
"""Name in the legend and color of the arms that have a color of their own."""


def save_figure(figure: Figure, path: str | Path, source: str | Path) -> None:
    """Write a figure; a PNG file keeps the digest of its data under ``Source``."""
    png = Path(path).suffix == ".png"
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    figure.savefig(path, dpi=120, metadata={"Source": digest} if png else None)


def plot(results: Mapping[str, Any]) -> Figure:
    """Draw losses against full steps and, below, speedups at equal quality; a column per task."""
    summary = Summary(results)
    setting = main_setting(summary)
    arms = [arm for arm in summary.settings[setting] if arm not in PLAIN]
    columns = len(summary.tasks)
    figure = new_figure(figsize=(1.6 + 3.4 * columns, 3.4 + 0.3 * len(arms)))
    grid = figure.subplots(2, columns, squeeze=False, height_ratios=(3, 0.4 + 0.3 * len(arms)))
    titles = [ARMS[arm].title for arm in arms]
    for k, task in enumerate(summary.tasks):
        _losses(grid[0, k], summary, task, setting)
        _speedups(grid[1, k], summary, task, setting, arms)
        grid[1, k].set_yticks(range(len(arms)), titles if k == 0 else [""] * len(arms))
    reach = [axes.get_xlim() for axes in grid[1]]
    for axes in grid[1]:
        axes.set_xlim(min(low for low, _ in reach), max(high for _, high in reach))
    seeds = results["seeds"]
    figure.suptitle(
        f"Suite {results['suite']}, {SETTINGS[setting].title}, {seeds} seed{'s' * (seeds != 1)}"
    )
    return figure


def _losses(axes: Axes, summary: Summary, task: str, setting: str) -> None:
    """Draw the curve of plain training, and the arms with and without predicted steps."""
    ours = [((arm,), label, color, "none") for arm, (label, color) in _OURS.items()]
    for arms, label, color, style in ((PLAIN, "plain", PLAIN_COLOR, "-"), *ours):
        figures = [summary.figures(task, setting, arm) for arm in arms]
        known = [f for f in figures if f is not None and f.loss["mean"] is not None]
        if not known:
            continue
        axes.errorbar(
            [f.full_steps for f in known],
            [f.loss["mean"] for f in known],
            [f.loss["sd"] or 0.0 for f in known],
            color=color,
            linestyle=style,
            marker="o",
            capsize=3,
            label=label,
        )
    axes.set(xscale="log", title=task, xlabel="full steps", ylabel="final loss")
    axes.minorticks_off()
    if known := [f for arm in PLAIN if (f := summary.figures(task, setting, arm)) is not None]:
        axes.set_xticks([f.full_steps for f in known], [f"{f.full_steps:,.0f}" for f in known])
    axes.legend(frameon=False)
    tidy(axes)


def _speedups(axes: Axes, summary: Summary, task: str, setting: str, arms: list[str]) -> None:
    """Draw the speedup of each arm with its interval over seeds, one line per arm."""
    axes.axvline(1.0, color=PLAIN_COLOR, linewidth=1)
    for row, arm in enumerate(arms):
        figures = summary.figures(task, setting, arm)
        if figures is None or figures.speedup is None:
            continue
        value, low, high = figures.speedup.value, figures.speedup.low, figures.speedup.high
        color = _OURS[arm][1] if arm in _OURS else OTHER_COLOR
        axes.plot([low or value, high or value], [row, row], color=color, linewidth=2)
        axes.plot([value], [row], color=color, marker="o")
        if figures.speedup.bound:
            axes.annotate(figures.speedup.bound, (value, row), xytext=(7, 0),
                          textcoords="offset points", va="center")  # fmt: skip
    axes.set(xlabel="speedup at equal quality", ylim=(len(arms) - 0.5, -0.5))
    tidy(axes)


def tidy(axes: Axes) -> None:
    """Remove the frame above and to the right, and draw a grid below everything else."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)
