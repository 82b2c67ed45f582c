"""Figures of one run, drawn from its log, and what all figures share."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybrid_predict.errors import HybridPredictError, MissingExtraError
from hybrid_predict.policy.confidence import NEAR, SHORTEST
from hybrid_predict.runs.log import RunLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (4.2, 3.3)
"""Width and height of a figure in inches; two fit side by side on a wide screen."""

KINDS = {"hidden": "#264653", "embedding": "#457b9d", "head": "#e9a03b", "vector": "#8a8f98"}
"""Colours of the kinds of parameters, the same on every page."""

_VERDICTS = {"predicted_steps": ("stands", "#2a9d8f"), "undone_steps": ("undone", "#d1495b")}
"""Numbers of the ledger that the bars show, with name and colour."""

_BARS = 40
"""Most bars in the histogram of predicted steps."""

logger = logging.getLogger(__name__)


class Measured(NamedTuple):
    """A figure of numbers of ``ledger.skills`` over full steps, by kind."""

    title: str
    label: str
    styles: dict[str, str]
    """Line styles by the name of the number; the first one has the kind's name in the legend."""
    bounds: tuple[float, ...]


MEASURED = (
    Measured(
        "Skill: what forecasts explain of the movement",
        "skill (1: all, 0: chance)",
        {"mean": "-", "lower": "--"},
        (0.0,),
    ),
    Measured(
        "Length of a forecast",
        "lengths of the drift",
        {"length": "-", "fitted": ":"},
        (SHORTEST,),
    ),
)
"""Figures of every run with predicted steps."""

LASTING = (
    Measured("Persistence", "persistence", {"persistence": "-"}, (NEAR.falling, NEAR.rising)),
    Measured("Advance per full step", "lengths of the drift", {"advance": "-"}, ()),
)
"""Figures of a run that decides itself how far predicted steps lead."""


def new_figure(**kwargs: Any) -> Figure:
    """Return an empty matplotlib figure, without pyplot and its global state.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("A figure", "cli") from error
    return Figure(layout="constrained", **kwargs)


def data_uri(draw: Callable[..., Figure], *arguments: Any) -> str:
    """Draw a figure, and return it as a data URI of SVG, which is empty if it cannot be drawn.

    Names are drawn as they are: matplotlib would read two dollar signs as mathematics.
    """
    drawing = BytesIO()
    try:
        figure = draw(*arguments)
        for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
            text.set_parse_math(False)  # type: ignore[attr-defined]
        figure.savefig(drawing, format="svg", metadata={"Date": None}, transparent=True)
    except HybridPredictError:
        raise
    except Exception:
        logger.warning("A figure failed; the page goes without it.", exc_info=True)
        return "data:,"
    return "data:image/svg+xml;base64," + base64.b64encode(drawing.getvalue()).decode("ascii")


def tidy(axes: Axes, title: str = "") -> None:
    """Title the axes, and draw faint horizontal lines in place of a frame."""
    axes.set_title(title, fontsize="medium", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)


def scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic if the lines are positive and span a power of ten."""
    values = np.concatenate([np.empty(0), *(line.get_ydata() for line in axes.lines)])
    values = values[np.isfinite(values)]
    if len(values) and values.max() > 10 * values.min() > 0:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")  # 0.2, where the default is a power
        axes.yaxis.set_minor_formatter(NullFormatter())


def smoothed(values: Sequence[float | None], span: int) -> np.ndarray:
    """Return the running mean over the last ``span`` values; NaN while none of them is known."""
    data = np.array(values, dtype=float)
    parts = [data[max(0, k + 1 - span) : k + 1] for k in range(len(data))]
    return np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in parts])


def loss_figure(log: RunLog) -> Figure:
    """Draw training loss over full steps and, below it, predicted steps with their verdicts.

    Warm-up, cooldown and plain training after a fall-back are grey.
    """
    figure = new_figure(figsize=SIZE)
    top, bottom = figure.subplots(2, 1, height_ratios=(2, 1), sharex=True)
    full_steps = [row.ledger.full_steps for row in log.rows]
    _draw_loss(top, log, full_steps)
    tidy(top, "Training loss over full steps")
    last = max([1, *full_steps])
    edges = np.linspace(0, last, min(_BARS, last) + 1)
    width = edges[1]
    below = np.zeros(len(edges) - 1)
    for key, (name, color) in _VERDICTS.items():
        counts = np.diff([0, *(getattr(row.ledger, key) for row in log.rows)])
        heights = np.histogram(full_steps, edges, weights=counts)[0] / width
        label = f"{name}: {int(counts.sum()):,}"
        style: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.3, "align": "edge"}
        bottom.bar(edges[:-1], heights, width, below, color=color, label=label, **style)
        below = below + heights
    bottom.set(xlabel="full steps", ylabel="predicted per\nfull step", xlim=(0, last))
    bottom.set_ylim(0, 1.6 * (max(below) or 1.0))
    bottom.legend(frameon=False, ncols=2, fontsize="small", loc="upper right")
    tidy(bottom)
    plan = log.start["plan"]
    steps = [0, *(row.ledger.steps for row in log.rows)]
    ends = [0, plan["warmup"], log.steps - plan["cooldown"], log.steps]
    start, warm, cool, end = np.interp(ends, steps, [0, *full_steps])
    fell_back = (e["step"] for e in log.ledger.events if e["reason"] == log.ledger.fell_back)
    plain = next(fell_back, end)
    for axes in (top, bottom):
        axes.axvspan(start, min(warm, plain), color="#eef0f3", zorder=0)
        axes.axvspan(min(cool, plain), end, color="#eef0f3", zorder=0)
    return figure


def seconds_figure(log: RunLog) -> Figure:
    """Draw training loss over the host seconds that full steps and the plug-in took."""
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    seconds = [row.ledger.full_seconds + row.ledger.overhead_seconds for row in log.rows]
    _draw_loss(axes, log, seconds)
    axes.set(xlabel="seconds of training, on the host", xlim=(0, None))
    tidy(axes, "Training loss over seconds")
    return figure


def _draw_loss(axes: Axes, log: RunLog, at: Sequence[float]) -> None:
    loss = smoothed([row.loss for row in log.rows], max(1, len(log.rows) // 40))
    axes.plot(at, loss, color="#264653", linewidth=1.6)
    axes.set_ylabel("training loss\n(running mean)")
    scale(axes)


def kinds_figure(log: RunLog, shown: Measured) -> Figure:
    """Draw numbers of every kind over full steps, where they are known from two windows."""
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    first = next(iter(shown.styles))
    for kind in log.ledger.skills:
        rows = [(row.ledger.full_steps, row.ledger.skills.get(kind, {})) for row in log.rows]
        known = [(n, skill) for n, skill in rows if skill.get("windows", 0) > 1]
        for name, style in shown.styles.items():
            points = [(n, skill[name]) for n, skill in known if name in skill]
            axes.plot(
                [n for n, _ in points],
                [value for _, value in points],
                color=KINDS.get(kind, "black"),
                linestyle=style,
                linewidth=1.6,
                label=kind if name == first and points else None,
            )
    for bound in shown.bounds:
        axes.axhline(bound, color="#d1495b", linewidth=1)
    axes.set(xlabel="full steps", ylabel=shown.label, xlim=(0, None))
    tidy(axes, shown.title)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    else:
        text = "not known yet" if log.end is None else "never known"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#5c6370")
    return figure
