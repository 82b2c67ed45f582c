"""The figure of one run: loss, horizon and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.errors import MissingExtraError
from hybrid_predict.report.history import RunHistory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"accepted": "#2a9d8f", "shrunk": "#e9a03b", "rejected": "#d1495b"}


def new_figure(**kwargs: Any) -> Figure:
    """An empty matplotlib figure that no window or global state knows.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("A figure", "cli") from error
    return Figure(layout="constrained", **kwargs)


def smoothed(values: list[float | None], span: int = 25) -> np.ndarray:
    """A running mean over up to ``span`` past values; gaps where a value is missing."""
    data = np.array([np.nan if v is None else v for v in values], dtype=float)
    known = ~np.isnan(data)
    sums, counts = np.cumsum(np.where(known, data, 0.0)), np.cumsum(known)
    past = np.maximum(np.arange(len(data)) - span, -1)
    total = sums - np.where(past >= 0, sums[past], 0.0)
    count = counts - np.where(past >= 0, counts[past], 0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def run_figure(history: RunHistory) -> Figure:
    """Loss against full and against equivalent steps, horizon and verdicts against full steps.

    Args:
        history: The run's history.

    Returns:
        A matplotlib figure of three panels.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figure = new_figure(figsize=(9, 7))
    top, middle, bottom = figure.subplots(3, 1, height_ratios=(3, 2, 1))
    full = history.column("full_step")
    loss = smoothed(history.column("loss"))
    top.plot(full, loss, color="#264653", label="against full steps")
    top.plot(
        history.column("equivalent_step"),
        loss,
        color="#264653",
        alpha=0.45,
        linestyle="--",
        label="against equivalent steps",
    )
    top.set(ylabel="training loss (running mean)", xlabel="steps")
    top.legend(frameon=False)
    middle.plot(full, history.column("horizon"), color="#457b9d")
    middle.set(ylabel="mean horizon (updates)")
    verdicts = history.column("verdict")
    edges = np.linspace(0, max([*full, 1]), 41)
    below = np.zeros(40)
    for name, color in COLORS.items():
        steps = [step for step, verdict in zip(full, verdicts, strict=True) if verdict == name]
        counts, _ = np.histogram(steps, edges)
        bottom.bar(
            edges[:-1], counts, np.diff(edges), bottom=below, align="edge", color=color, label=name
        )
        below += counts
    bottom.set(ylabel="verdicts", xlabel="full steps")
    bottom.legend(
        frameon=False, ncols=3, fontsize="small", loc="lower right", bbox_to_anchor=(1, 1)
    )
    return figure
