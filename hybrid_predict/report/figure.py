"""The figure of one run: its loss, its predicted steps and their verdicts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hybrid_predict.report.history import RunHistory

COLORS = {"stands": "#2a9d8f", "undone": "#d1495b"}

BARS = 40
"""Most bars in the histogram of predicted steps."""


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


def save_figure(figure: Figure, path: str | Path, source: str | Path) -> None:
    """Write a figure; a PNG file says which data it was drawn from.

    Args:
        figure: The figure.
        path: File to write.
        source: File with the data. Its digest is kept under ``Source``, so that a figure that is
            older than its data can be found.
    """
    png = Path(path).suffix == ".png"
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    figure.savefig(path, dpi=120, metadata={"Source": digest} if png else None)


def smoothed(values: list[float | None], span: int = 25) -> np.ndarray:
    """Return the running mean over the last ``span`` values; NaN while none of them is known."""
    data = np.array([np.nan if v is None else v for v in values], dtype=float)
    known = ~np.isnan(data)
    sums, counts = np.cumsum(np.where(known, data, 0.0)), np.cumsum(known)
    past = np.maximum(np.arange(len(data)) - span, -1)
    total = sums - np.where(past >= 0, sums[past], 0.0)
    count = counts - np.where(past >= 0, counts[past], 0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def run_figure(history: RunHistory) -> Figure:
    """Draw training loss over steps and, below it, predicted steps with their verdicts.

    Args:
        history: History of the run.

    Returns:
        A figure of two panels.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = new_figure(figsize=(5.4, 4.2))
    top, bottom = figure.subplots(2, 1, height_ratios=(3, 1.2), sharex=True)
    steps = np.array(history.column("step"), dtype=float)
    loss = smoothed(history.column("loss"))
    top.plot(steps, loss, color="#264653")
    stands, undone = (np.array(history.column(name)) for name in ("predicted", "undone"))
    where = undone > 0
    if where.any():
        top.scatter(
            steps[where], loss[where], color=COLORS["undone"], marker="x", zorder=3,
            label="predicted steps undone here",
        )  # fmt: skip
        top.legend(frameon=False)
    top.set_title("Training loss of this run alone", fontsize="medium", loc="left")
    top.set(ylabel="training loss\n(running mean)")
    last = int(max([*steps, 1]))
    edges = np.linspace(0, last, min(BARS, last) + 1)
    below = np.zeros(len(edges) - 1)
    for (name, color), counts in zip(COLORS.items(), (stands, undone), strict=True):
        heights, _ = np.histogram(steps, edges, weights=counts)
        label = f"{name}: {int(sum(counts)):,}"
        bottom.bar(
            edges[:-1], heights, np.diff(edges), bottom=below, align="edge", color=color,
            label=label, edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        below += heights
    bottom.set(ylabel="predicted steps", xlabel="steps", xlim=(0, last))
    bottom.set_ylim(0, 1.5 * max([*below, 1]))
    bottom.yaxis.get_major_locator().set_params(integer=True)
    bottom.legend(frameon=False, ncols=2, fontsize="small", loc="upper right")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
