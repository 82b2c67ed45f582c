"""Loss over the learning rate, one panel per task and one line per arm."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchmarks.plan import Row, number
from benchmarks.plot import tidy
from benchmarks.rates.study import best_rates
from benchmarks.tasks import TASKS
from hybrid_predict.report.shared import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = {"plain": "#264653", "corrected": "#edae49", "auto": "#d1495b"}
"""Color by arm."""


def plot(rows: Iterable[Row]) -> Figure:
    """Return a figure of the final losses of T steps; the flatter a line, the less tuning pays."""
    best = best_rates()
    losses: dict[tuple[str, str, float], list[float]] = {}
    for row in rows:
        if _whole(row):
            key = row["task"], row["arm"], row["rate"] / best[row["task"]]
            losses.setdefault(key, []).append(number(row["loss"]))
    tasks = list(dict.fromkeys(task for task, _, _ in losses))
    columns = min(4, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = new_figure(figsize=(3.0 * columns, 2.6 * lines))
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in panels[len(tasks) :]:
        axes.set_axis_off()
    for axes, task in zip(panels, tasks, strict=False):
        for arm, color in LINES.items():
            mine = sorted((share, x) for (name, a, share), x in losses.items()
                          if (name, a) == (task, arm))  # fmt: skip
            axes.plot([share for share, _ in mine], [statistics.fmean(x) for _, x in mine],
                      color=color, marker="o", markersize=3, label=arm)  # fmt: skip
        axes.set(title=task, xscale="log")
        tidy(axes)
    figure.supxlabel("learning rate / best rate of plain training")
    figure.supylabel("final loss")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _whole(row: Row) -> bool:
    """Whether a run has the schedule of T steps."""
    steps = TASKS[row["task"]].steps
    return bool(row["full_steps"] == steps if row["arm"] != "auto" else row["steps"] == steps)
