"""Figures of the studies' results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.arms import ARMS, PLAIN
from benchmarks.gains import Ratio, Summary, geometric
from benchmarks.plan import Row
from benchmarks.studies import rates
from benchmarks.studies.suites import SETTINGS
from benchmarks.views import count
from hybrid_predict.runs.page import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "plain": "#264653",
    "corrected": "#edae49",
    "hybrid": "#d1495b",
    "auto": "#d1495b",
    "corrected-any-cost": "#7a5195",
    "muon": "#30638e",
    "normuon": "#2a9d8f",
}
"""Of arms."""

TASK = "gpt-0.2m"
"""The task of the first picture."""


def first(results: Mapping[str, Any]) -> Figure:
    """Draw final losses against full steps, and against seconds; a point is a run's end."""
    summary = Summary(results["runs"])
    figure = new_figure(figsize=(6.0, 3.2))  # letters that a phone can show
    left, right = figure.subplots(1, 2, sharey=True)
    costs = results["steps"][TASK]
    second = costs["plain_ms"] / 1e3
    ratios = {"plain": 1.0, "corrected": costs["corrected"]["ratio"],
              "hybrid": costs["both"]["ratio"], "muon": None}  # fmt: skip
    for name, ratio in ratios.items():
        found = [summary.figures(TASK, arm) for arm in (PLAIN if name == "plain" else (name,))]
        known = [f for f in found if f is not None and f.loss["mean"] is not None]
        style = {"color": COLORS[name], "marker": "o", "capsize": 3,
                 "linestyle": "-" if name == "plain" else "none"}  # fmt: skip
        label = "plain training" if name == "plain" else ARMS[name].title
        losses = [f.loss["mean"] for f in known]
        spreads = [f.loss["sd"] or 0.0 for f in known]
        full = [f.full_steps for f in known]
        left.errorbar(full, losses, spreads, label=label, **style)
        if ratio is not None:  # the peer's steps were not timed side by side
            seconds = [n * second * ratio for n in full]
            right.errorbar(seconds, losses, spreads, **style)
    left.set(xlabel="full steps", ylabel="final validation loss")
    right.set(xlabel="seconds on one thread")
    left.legend(frameon=False, fontsize=9, handlelength=1.2)
    title = f"{TASK}, {SETTINGS[summary.setting]}, {count(summary.seeds, 'seed')}"
    figure.suptitle(title, fontsize=10)
    tidy(left)
    tidy(right)
    return figure


def of_rates(rows: Iterable[Row]) -> Figure:
    """Draw gains beside plain training at its best rate: the flatter, the better.

    Every arm has a panel. It shows the tasks on which the rule was chosen, with a thin line for
    each, and a thick one for their geometric mean.
    """
    found = rates.points(row for row in rows if row["task"] in rates.DEVELOPMENT)
    figure = new_figure(figsize=(9.6, 3.6))
    panels = figure.subplots(1, len(rates.COMPARED), sharey=True)
    for axes, arm in zip(panels, rates.COMPARED, strict=True):
        at: dict[float, list[Ratio]] = {}
        for task in dict.fromkeys(p.task for p in found):
            mine = [p for p in found if (p.task, p.arm) == (task, arm)]
            for point in mine:
                at.setdefault(point.share, []).append(point.beside_tuned)
            values = [p.beside_tuned.value for p in mine]
            axes.plot([p.share for p in mine], values, color=COLORS[arm], alpha=0.4, linewidth=0.8)
        means = [geometric(ratios).value for ratios in at.values()]
        axes.plot(list(at), means, color=COLORS[arm], marker="o")
        axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
        axes.set(title=ARMS[arm].title, xscale="log", yscale="log")
        tidy(axes)
    figure.supxlabel("learning rate / best rate of plain training")
    figure.supylabel("tuned plain steps per full step")
    return figure


def tidy(axes: Axes) -> None:
    """Remove the frame above and to the right, and draw a grid below everything else."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)
