"""Speedup against parameters and against steps, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchmarks.arms import ARMS
from benchmarks.plan import Row
from benchmarks.plot import CORRECTED_COLOR, HYBRID_COLOR, PLAIN_COLOR, tidy
from benchmarks.scale.table import Point, points
from hybrid_predict.runs.evidence import AT_LEAST, AT_MOST, EXACT
from hybrid_predict.runs.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "corrected": CORRECTED_COLOR,
    "hybrid": HYBRID_COLOR,
    "corrected-any-cost": "#7a5195",
    "muon": "#30638e",
    "normuon": "#2a9d8f",
}

_SHAPES = {EXACT: "o", AT_LEAST: "^", AT_MOST: "v"}
"""Of marks, by what the speedup is: a value, or a bound of it."""

WIDTH, STEPS = 64, 600
"""The width whose lengths, and the T whose widths are compared."""


def plot(rows: Iterable[Row]) -> Figure:
    """Two panels: widths at one length, lengths at one width."""
    compared = [p for p in points(rows) if p.speedup is not None]
    figure = new_figure(figsize=(9.6, 4.6))
    left, right = figure.subplots(1, 2, sharey=True)
    _lines(left, [p for p in compared if p.steps == STEPS], "parameters")
    _lines(right, [p for p in compared if p.width == WIDTH], "steps")
    left.set(title=f"T = {STEPS:,} steps", xlabel="parameters",
             ylabel="speedup at equal quality")  # fmt: skip
    right.set(title=f"width {WIDTH}", xlabel="T, steps")
    handles = dict(zip(*reversed(left.get_legend_handles_labels()), strict=True))
    handles |= dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3,
                  frameon=False)  # fmt: skip
    return figure


def _lines(axes: Axes, compared: Sequence[Point], along: str) -> None:
    """One line per arm, which ends before bounds; bars are intervals, hollow marks one seed."""
    for k, (arm, color) in enumerate(COLORS.items()):
        mine = sorted((p for p in compared if p.arm == arm), key=lambda p: getattr(p, along))
        if not mine:
            continue
        # Side by side, so that bars do not hide one another.
        at = [getattr(p, along) * 1.04 ** (k - 2) for p in mine]
        values = [_value(p) for p in mine]
        axes.plot(at, values, color=color, linewidth=1.2, label=ARMS[arm].title)
        for x, point in zip(at, mine, strict=True):
            _mark(axes, x, point, color)
    ticks = sorted({getattr(p, along) for p in compared})
    axes.set_xscale("log")
    axes.minorticks_off()
    if ticks:  # a single one is to stand in the middle
        axes.set_xlim(ticks[0] / 1.5, ticks[-1] * 1.5)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.axhline(1.0, color=PLAIN_COLOR, linewidth=1)
    tidy(axes)


def _mark(axes: Axes, x: float, point: Point, color: str) -> None:
    speedup = point.speedup
    assert speedup is not None
    if speedup.low is not None and speedup.high is not None:
        axes.plot([x, x], [speedup.low, speedup.high], color=color, linewidth=2.5, alpha=0.5)
    shape, face = _SHAPES[speedup.bound], "white" if speedup.low is None else color
    axes.plot([x], [speedup.value], color=color, marker=shape, mfc=face)


def _value(point: Point) -> float:
    assert point.speedup is not None
    return math.nan if point.speedup.bound else point.speedup.value
