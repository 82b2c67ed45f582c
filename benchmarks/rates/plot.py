"""Gains over the learning rate, one panel per task and one line per arm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchmarks.arms import ARMS
from benchmarks.plan import Row
from benchmarks.plot import CORRECTED_COLOR, HYBRID_COLOR, PLAIN_COLOR, tidy
from benchmarks.rates.gains import COMPARED, Ratio, mean_value, points, untuned_ratios
from benchmarks.rates.plan import DEVELOPMENT
from hybrid_predict.runs.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = dict(zip(COMPARED, (PLAIN_COLOR, CORRECTED_COLOR, HYBRID_COLOR), strict=True))
MEAN = "geometric mean"


def plot(rows: Iterable[Row]) -> Figure:
    """Return a figure of gains beside plain training at its best rate: the flatter, the better.

    It shows the tasks on which the rule was chosen. The last panel has their means, and optimizers
    that need no learning rate.
    """
    kept = [row for row in rows if row["task"] in DEVELOPMENT]
    ratios = {(p.task, p.arm, p.share): p.beside_tuned for p in points(kept)}
    tasks = list(dict.fromkeys(task for task, _, _ in ratios))
    columns = min(4, len(tasks) + 1)
    lines = -(-(len(tasks) + 1) // columns)
    figure = new_figure(figsize=(3.0 * columns, 2.6 * lines))
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in panels[len(tasks) + 1 :]:
        axes.set_axis_off()
    for axes, task in zip(panels, tasks, strict=False):
        own = {(arm, share): [r] for (name, arm, share), r in ratios.items() if name == task}
        _draw(axes, task, own)
    means: dict[tuple[str, float], list[Ratio]] = {}
    for (_, arm, share), ratio in ratios.items():
        means.setdefault((arm, share), []).append(ratio)
    _draw(panels[len(tasks)], MEAN, means)
    _draw_peers(panels[len(tasks)], kept)
    figure.supxlabel("learning rate / best rate of plain training")
    figure.supylabel("tuned plain steps per full step")
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _draw(axes: Axes, title: str, ratios: dict[tuple[str, float], list[Ratio]]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for arm, color in COLORS.items():
        mine = sorted((share, mean_value(r)) for (name, share), r in ratios.items() if name == arm)
        axes.plot([share for share, _ in mine], [value for _, value in mine],
                  color=color, marker="o", markersize=3, label=arm)  # fmt: skip
    axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    axes.set(title=title, xscale="log", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    tidy(axes)


def _draw_peers(axes: Axes, rows: Iterable[Row]) -> None:
    peers = [(mean_value(tasks.values()), arm) for (arm, _), tasks in untuned_ratios(rows).items()
             if arm not in COMPARED]  # fmt: skip
    for k, (value, arm) in enumerate(sorted(peers)):
        axes.axhline(value, color="0.5", linestyle=":", linewidth=0.8)
        place, side = ((0.02, "left"), (0.98, "right"))[k % 2]  # neighbours would overlap
        axes.annotate(ARMS[arm].title, (place, value), xycoords=("axes fraction", "data"),
                      fontsize=6, va="bottom", ha=side)  # fmt: skip
