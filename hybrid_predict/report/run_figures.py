"""Figures of one run, drawn from its event log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.rules.skill import SHORTEST
from hybrid_predict.report.figure import BARS, COLORS, new_figure, smoothed
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.shared import SIZE, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"hidden": "#264653", "embedding": "#457b9d", "head": "#e9a03b", "vector": "#8a8f98"}
"""Colours of the kinds of parameters, the same on every page."""

PARTS = {
    "full steps, corrected": "#2a9d8f",
    "full steps, plain": "#264653",
    "predicted steps": "#e9a03b",
    "correcting": "#d1495b",
    "predicting, verifying": "#f4a6b0",
}
"""Colours of what steps and seconds are spent on."""


def loss_figure(log: RunLog) -> Figure:
    """Draw training loss over steps and, below it, predicted steps with their verdicts."""
    figure = new_figure(figsize=SIZE)
    top, bottom = figure.subplots(2, 1, height_ratios=(2.4, 1), sharex=True)
    steps = np.array([row["steps"] for row in log.rows], dtype=float)
    loss = smoothed([row["loss"] for row in log.rows], max(1, len(log.rows) // 40))
    top.plot(steps, loss, color="#264653", linewidth=1.6)
    top.set_title("Training loss of this run alone", fontsize="medium", loc="left")
    top.set_ylabel("training loss\n(running mean)")
    plan, below = log.start["plan"], np.zeros(min(BARS, log.steps))
    edges = np.linspace(0, log.steps, len(below) + 1)
    for name, key in (("stands", "predicted_steps"), ("undone", "undone_steps")):
        counts = np.diff([0, *(row[key] for row in log.rows)])
        heights, _ = np.histogram(steps, edges, weights=counts)
        label = f"{name}: {int(counts.sum()):,}"
        bottom.bar(
            edges[:-1], heights, np.diff(edges), bottom=below, align="edge", color=COLORS[name],
            label=label, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
        below = below + heights
    bottom.set(ylabel="predicted\nsteps", xlabel="steps of the schedule", xlim=(0, log.steps))
    bottom.set_ylim(0, 1.6 * max([*below, 1]))
    bottom.yaxis.get_major_locator().set_params(integer=True)
    bottom.legend(frameon=False, ncols=2, fontsize="small", loc="upper right")
    for axes in (top, bottom):
        tidy(axes)
        axes.axvspan(0, plan["warmup"], color="#eef0f3", zorder=0)
        axes.axvspan(log.steps - plan["cooldown"], log.steps, color="#eef0f3", zorder=0)
    return figure


def skill_figure(log: RunLog) -> Figure:
    """Draw by kind, over full steps: skill with its lower bound, and the length of forecasts."""
    figure = new_figure(figsize=(SIZE[0], 1.4 * SIZE[1]))
    top, bottom = figure.subplots(2, sharex=True)
    for kind, steps, known in _skills(log):
        color = KINDS.get(kind, "black")
        top.plot(steps, known["mean"], color=color, linewidth=1.8, label=f"{kind}: mean")
        top.plot(steps, known["lower"], color=color, linestyle="--", label="lower bound")
        bottom.plot(steps, known["length"], color=color, linewidth=1.8, label=f"{kind}: next step")
        bottom.plot(steps, known["fitted"], color=color, linestyle=":", label="best fit so far")
    top.axhline(0, color="#d1495b", linewidth=1)
    bottom.axhline(SHORTEST, color="#d1495b", linewidth=1)
    top.set_title("Skill: what forecasts explain of the movement", fontsize="medium", loc="left")
    top.set(ylabel="skill (1: all, 0: chance)", xlim=(0, None))
    bottom.set_title("Length of a predicted step", fontsize="medium", loc="left")
    bottom.set(xlabel="full steps", ylabel="lengths of the drift", ylim=(0, None))
    for axes in (top, bottom):
        tidy(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
        else:
            text = "not known yet" if log.end is None else "never known: too few full steps"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#5c6370")
    return figure


def _skills(log: RunLog) -> list[tuple[str, list[int], dict[str, list[float]]]]:
    """Return for each kind: name, and where known full steps and the numbers of skill by name."""
    found = []
    for kind in dict.fromkeys(kind for row in log.rows for kind in row["skills"]):
        rows = [(row["full_steps"], row["skills"].get(kind)) for row in log.rows]
        known = [(step, skill) for step, skill in rows if skill and skill["windows"] > 1]
        if known:
            names = ("mean", "lower", "length", "fitted")
            numbers = {name: [skill[name] for _, skill in known] for name in names}
            found.append((kind, [step for step, _ in known], numbers))
    return found


def spent_figure(log: RunLog) -> Figure:
    """Draw the shares of steps and seconds that each part of a run took."""
    figure = new_figure(figsize=(SIZE[0], 2.4))
    axes = figure.subplots()
    named: set[str] = set()
    for height, parts in enumerate((seconds_spent(log), steps_spent(log))):
        total, left = sum(parts.values()) or 1.0, 0.0
        for name, amount in parts.items():
            share = 100 * amount / total
            label = None if name in named else name
            axes.barh(height, share, 0.6, left=left, color=PARTS[name], label=label)
            if share > 7:
                x, text = left + share / 2, f"{share:.0f} %"
                axes.text(x, height, text, ha="center", va="center", color="white", fontsize=8)
            left += share
            named.add(name)
    axes.set_yticks((0, 1), ("seconds", "steps"))
    axes.set(xlabel="share of this run (%)", xlim=(0, 100))
    axes.set_title("Where steps and seconds went", fontsize="medium", loc="left")
    tidy(axes)
    axes.grid(visible=False)
    figure.legend(
        *_unique(axes), loc="outside lower center", ncols=2, frameon=False, fontsize="small"
    )
    return figure


def steps_spent(log: RunLog) -> dict[str, float]:
    """Return the number of corrected, plain and predicted steps."""
    ledger = log.ledger
    counts = (ledger.corrected_steps, ledger.plain_steps, ledger.predicted_steps)
    return dict(zip(PARTS, map(float, counts), strict=False))


def seconds_spent(log: RunLog) -> dict[str, float]:
    """Return the seconds on the host by part; those of full steps are in the user's code."""
    ledger = log.ledger
    share = ledger.corrected_steps / ledger.full_steps if ledger.full_steps else 0.0
    full = {"full steps, corrected": share, "full steps, plain": 1.0 - share}
    return {
        **{name: ledger.full_seconds * part for name, part in full.items()},
        "correcting": ledger.correct_seconds,
        "predicting, verifying": ledger.predict_seconds,
    }


def _unique(axes: Any) -> tuple[list[Any], list[str]]:
    """Return handles and labels of a legend in the order of :data:`PARTS`."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: list(PARTS).index(labels[k]))
    return [handles[k] for k in order], [labels[k] for k in order]
