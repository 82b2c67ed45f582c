"""Figures of the studies' results."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.arms import ARMS, PLAIN
from benchmarks.gains import Figures, Summary
from benchmarks.plain_steps import AT_LEAST, AT_MOST, EXACT
from benchmarks.plan import Row
from benchmarks.studies import rates, scale
from benchmarks.studies.suites import SETTINGS
from benchmarks.views import count
from hybrid_predict.runs.figures import new_figure

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

WIDTH = 64
STEPS = 600
"""The width whose lengths, and the T whose widths are compared."""

_SHAPES = {EXACT: "o", AT_LEAST: "^", AT_MOST: "v"}
"""Of marks, by what the speedup is: a value, or a bound of it."""


def save_figure(figure: Figure, path: str | Path, source: str | Path) -> None:
    """Write a figure; a PNG file keeps the digest of its data under ``Source``."""
    png = Path(path).suffix == ".png"
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    figure.savefig(path, dpi=120, metadata={"Source": digest} if png else None)


def first(results: Mapping[str, Any]) -> Figure:
    """Draw final losses against full steps, and against seconds; a point is a run's end."""
    summary = Summary(results["runs"])
    figure = new_figure(figsize=(6.0, 3.2))  # letters that a phone can show
    left, right = figure.subplots(1, 2, sharey=True)
    costs = results["steps"][TASK]
    second = costs["plain_ms"] / 1e3
    seconds = {
        "plain": second,
        "corrected": second * costs["corrected"]["ratio"],
        "hybrid": second * costs["both"]["ratio"],
    }
    _losses(left, summary, TASK, ("corrected", "hybrid", "muon"))
    # The peer's steps were not timed side by side.
    _losses(right, summary, TASK, ("corrected", "hybrid"), seconds)
    left.set(xlabel="full steps", ylabel="final validation loss")
    right.set(xlabel="seconds on one thread")
    left.legend(frameon=False, fontsize=9, handlelength=1.2)
    title = f"{TASK}, {SETTINGS[summary.setting]}, {count(summary.seeds, 'seed')}"
    figure.suptitle(title, fontsize=10)
    return figure


def _losses(
    axes: Axes,
    summary: Summary,
    task: str,
    arms: Iterable[str],
    scales: Mapping[str, float] | None = None,
) -> None:
    """Draw the curve of plain training, and a point per arm; scales are of a full step."""
    for name, members in (("plain", PLAIN), *((arm, (arm,)) for arm in arms)):
        found = [summary.figures(task, arm) for arm in members]
        known = [f for f in found if f is not None and f.loss["mean"] is not None]
        scale = scales[name] if scales else 1.0
        axes.errorbar(
            [f.full_steps * scale for f in known],
            [f.loss["mean"] for f in known],
            [f.loss["sd"] or 0.0 for f in known],
            color=COLORS[name],
            linestyle="-" if name == "plain" else "none",
            marker="o",
            capsize=3,
            label="plain training" if name == "plain" else ARMS[name].title,
        )
    tidy(axes)


def of_rates(rows: Iterable[Row]) -> Figure:
    """Draw gains beside plain training at its best rate: the flatter, the better.

    It shows the tasks on which the rule was chosen. The last panel has their means.
    """
    kept = [row for row in rows if row["task"] in rates.DEVELOPMENT]
    panels: dict[str, dict[tuple[str, float], list[rates.Ratio]]] = {}
    for point in rates.points(kept):
        for title in (point.task, "geometric mean"):
            lines = panels.setdefault(title, {})
            lines.setdefault((point.arm, point.share), []).append(point.beside_tuned)
    means = panels.pop("geometric mean")
    columns = min(4, len(panels) + 1)
    lines_of_panels = -(-(len(panels) + 1) // columns)
    figure = new_figure(figsize=(3.0 * columns, 2.6 * lines_of_panels))
    every = figure.subplots(lines_of_panels, columns, squeeze=False).flatten()
    for axes in every[len(panels) + 1 :]:
        axes.set_axis_off()
    for axes, (title, ratios) in zip(
        every, [*panels.items(), ("geometric mean", means)], strict=False
    ):
        _rates(axes, title, ratios)
    figure.supxlabel("learning rate / best rate of plain training")
    figure.supylabel("tuned plain steps per full step")
    handles, names = every[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _rates(axes: Axes, title: str, ratios: Mapping[tuple[str, float], list[rates.Ratio]]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for arm in rates.COMPARED:
        mine = sorted(
            (share, rates.mean_value(r)) for (name, share), r in ratios.items() if name == arm
        )
        shares = [share for share, _ in mine]
        values = [value for _, value in mine]
        axes.plot(shares, values, color=COLORS[arm], marker="o", markersize=3, label=arm)
    axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
    axes.set(title=title, xscale="log", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    tidy(axes)


def of_scale(rows: Iterable[Row]) -> Figure:
    """Draw speedups in two panels: widths at one length, lengths at one width."""
    compared = [f for f in scale.points(rows) if f.speedup is not None and f.place.arm in COLORS]
    figure = new_figure(figsize=(9.6, 4.6))
    left, right = figure.subplots(1, 2, sharey=True)
    _along(left, [(f.first["parameters"], f) for f in compared if f.place.steps == STEPS])
    _along(right, [(f.place.steps, f) for f in compared if scale.width(f) == str(WIDTH)])
    left.set(title=f"T = {STEPS:,} steps", xlabel="parameters", ylabel="speedup at equal quality")
    right.set(title=f"width {WIDTH}", xlabel="T, steps")
    handles: dict[str, Any] = {}
    for axes in (left, right):
        found, names = axes.get_legend_handles_labels()
        handles |= dict(zip(names, found, strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def _along(axes: Axes, places: Sequence[tuple[float, Figures]]) -> None:
    """Draw one line per arm, which ends before bounds."""
    for k, (arm, color) in enumerate(COLORS.items()):
        # Side by side, so that bars do not hide one another.
        mine = sorted(
            ((x * 1.04 ** (k - 3), f) for x, f in places if f.place.arm == arm and arm != "plain"),
            key=lambda pair: pair[0],
        )
        if not mine:
            continue
        values = [f.speedup.value if f.speedup and not f.speedup.bound else math.nan
                  for _, f in mine]  # fmt: skip
        label = ARMS[arm].title
        axes.plot([x for x, _ in mine], values, color=color, linewidth=1.2, label=label)
        for x, figures in mine:
            _mark(axes, x, figures, color)
    ticks = sorted({x for x, _ in places})
    axes.set_xscale("log")
    axes.minorticks_off()
    if ticks:  # a single one is to stand in the middle
        axes.set_xlim(ticks[0] / 1.5, ticks[-1] * 1.5)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.axhline(1.0, color=COLORS["plain"], linewidth=1)
    tidy(axes)


def _mark(axes: Axes, x: float, figures: Figures, color: str) -> None:
    """Mark a speedup: the bar is its interval, a hollow mark has one seed, triangles are bounds."""
    speedup = figures.speedup
    assert speedup is not None
    if speedup.low is not None and speedup.high is not None:
        axes.plot([x, x], [speedup.low, speedup.high], color=color, linewidth=2.5, alpha=0.5)
    face = "white" if speedup.low is None else color
    axes.plot([x], [speedup.value], color=color, marker=_SHAPES[speedup.bound], mfc=face)


def tidy(axes: Axes) -> None:
    """Remove the frame above and to the right, and draw a grid below everything else."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)
