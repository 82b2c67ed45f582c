"""Figures of one run, drawn from its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.shared import SIZE, new_figure, smoothed, tidy
from hybrid_predict.rules.pace import NEAR
from hybrid_predict.rules.skill import SHORTEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {"hidden": "#264653", "embedding": "#457b9d", "head": "#e9a03b", "vector": "#8a8f98"}
"""Colours of the kinds of parameters, the same on every page."""

VERDICTS = {"stands": "#2a9d8f", "undone": "#d1495b"}
"""Colours of predicted steps by their verdict."""

BARS = 40
"""Most bars in the histogram of predicted steps."""

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
    steps = np.array([row.ledger.steps for row in log.rows], dtype=float)
    loss = smoothed([row.loss for row in log.rows], max(1, len(log.rows) // 40))
    top.plot(steps, loss, color="#264653", linewidth=1.6)
    top.set_title("Training loss of this run alone", fontsize="medium", loc="left")
    top.set_ylabel("training loss\n(running mean)")
    plan, below = log.start["plan"], np.zeros(min(BARS, log.steps))
    edges = np.linspace(0, log.steps, len(below) + 1)
    for name, key in (("stands", "predicted_steps"), ("undone", "undone_steps")):
        counts = np.diff([0, *(getattr(row.ledger, key) for row in log.rows)])
        heights, _ = np.histogram(steps, edges, weights=counts)
        label = f"{name}: {int(counts.sum()):,}"
        bottom.bar(
            edges[:-1], heights, np.diff(edges), bottom=below, align="edge", color=VERDICTS[name],
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
    figure, top, bottom = _two_panels()
    for kind, steps, known in _numbers(log, "mean", "lower", "length", "fitted"):
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
    _explain(log, top, bottom)
    return figure


def pace_figure(log: RunLog) -> Figure:
    """Draw over full steps: predicted steps per full step with advance, persistence by kind."""
    figure, top, bottom = _two_panels()
    steps, numbers = _per_full_step(log)
    top.plot(steps, numbers, color="black", linewidth=1.8, label="predicted steps")
    for kind, at, known in _numbers(log, "persistence", "advance"):
        color = KINDS.get(kind, "black")
        top.plot(at, known["advance"], color=color, linestyle=":", label=f"{kind}: advance")
        bottom.plot(at, known["persistence"], color=color, linewidth=1.8, label=kind)
    for bound in (NEAR.falling, NEAR.rising):
        bottom.axhline(bound, color="#d1495b", linewidth=1)
    top.set_title("Per full step", fontsize="medium", loc="left")
    top.set(ylabel="predicted steps;\ndrifts (advance)", xlim=(0, None), ylim=(0, None))
    bottom.set_title("Persistence; red: thresholds up to 4", fontsize="medium", loc="left")
    bottom.set(xlabel="full steps", ylabel="persistence")
    _explain(log, top, bottom)
    return figure


def _two_panels() -> tuple[Figure, Axes, Axes]:
    """Return a figure with two axes over full steps, one above the other."""
    figure = new_figure(figsize=(SIZE[0], 1.4 * SIZE[1]))
    return figure, *figure.subplots(2, sharex=True)


def _explain(log: RunLog, *panels: Axes) -> None:
    """Tidy axes, with a legend, or why there is no curve."""
    for axes in panels:
        tidy(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
        else:
            text = "not known yet" if log.end is None else "never known: too few full steps"
            axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#5c6370")


def _per_full_step(log: RunLog) -> tuple[list[int], list[float]]:
    """Return full steps, and the predicted steps per full step over the rows right before them."""
    ledgers, span = [row.ledger for row in log.rows], max(1, len(log.rows) // BARS)
    pairs = zip([SavingsLedger()] * span + ledgers, ledgers, strict=False)
    parts = [(old, new) for old, new in pairs if new.full_steps > old.full_steps]
    numbers = [
        (new.predicted_steps - old.predicted_steps) / (new.full_steps - old.full_steps)
        for old, new in parts
    ]
    return [new.full_steps for _, new in parts], numbers


def _numbers(log: RunLog, *names: str) -> list[tuple[str, list[int], dict[str, list[float]]]]:
    """Return for each kind: its name, and where all are known full steps and numbers by name."""
    kinds = []
    for kind in log.ledger.skills:
        rows = [(row.ledger.full_steps, row.ledger.skills.get(kind, {})) for row in log.rows]
        known = [(n, skill) for n, skill in rows if skill.keys() >= {"windows", *names}]
        known = [(n, skill) for n, skill in known if skill["windows"] > 1]
        if known:
            numbers = {name: [skill[name] for _, skill in known] for name in names}
            kinds.append((kind, [n for n, _ in known], numbers))
    return kinds


def spent_figure(log: RunLog) -> Figure:
    """Draw the shares of steps and seconds that each part of a run took."""
    figure = new_figure(figsize=(SIZE[0], 2.4))
    axes = figure.subplots()
    for name, color in PARTS.items():
        axes.barh(0, 0, color=color, label=name)
    ledger = log.ledger
    corrected = ledger.corrected_steps / max(1, ledger.full_steps)
    seconds = ledger.full_seconds * np.array([corrected, 1.0 - corrected])
    spent = (
        [*seconds, 0.0, ledger.correct_seconds, ledger.predict_seconds],
        [ledger.corrected_steps, ledger.plain_steps, ledger.predicted_steps],
    )
    for height, amounts in enumerate(spent):
        total, left = sum(amounts) or 1.0, 0.0
        for color, amount in zip(PARTS.values(), amounts, strict=False):
            share = 100 * amount / total
            axes.barh(height, share, 0.6, left=left, color=color)
            if share > 7:
                x, text = left + share / 2, f"{share:.0f} %"
                axes.text(x, height, text, ha="center", va="center", color="white", fontsize=8)
            left += share
    axes.set_yticks((0, 1), ("seconds", "steps"))
    axes.set(xlabel="share of this run (%)", xlim=(0, 100))
    axes.set_title("Where steps and seconds went", fontsize="medium", loc="left")
    tidy(axes)
    axes.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure
