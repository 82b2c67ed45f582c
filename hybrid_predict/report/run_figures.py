"""Figures of one run, drawn from its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.policy.confidence import NEAR, SHORTEST
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.shared import SIZE, new_figure, scale, smoothed, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {"hidden": "#264653", "embedding": "#457b9d", "head": "#e9a03b", "vector": "#8a8f98"}
"""Colours of the kinds of parameters, the same on every page."""

VERDICTS = {"stands": "#2a9d8f", "undone": "#d1495b"}
"""Colours of predicted steps by their verdict."""

BARS = 40
"""Most bars in the histogram of predicted steps."""

SKILL = {"mean": ("-", "{}"), "lower": ("--", "lower bound")}
LENGTH = {"length": ("-", "{}"), "fitted": (":", "best fit so far")}
PERSISTENCE = {"persistence": ("-", "{}")}
ADVANCE = {"advance": (":", "{}: advance")}
"""Numbers of ``ledger.skills`` in one figure: how each is drawn, and its name in the legend."""


def loss_figure(log: RunLog) -> Figure:
    """Draw training loss over full steps and, below it, predicted steps with their verdicts."""
    figure = new_figure(figsize=SIZE)
    top, bottom = figure.subplots(2, 1, height_ratios=(2, 1), sharex=True)
    full_steps = [row.ledger.full_steps for row in log.rows]
    _draw_loss(top, log, full_steps)
    top.set_title("Training loss over full steps", fontsize="medium", loc="left")
    last = max([1, *full_steps])
    edges = np.linspace(0, last, min(BARS, last) + 1)
    width, below = edges[1], np.zeros(len(edges) - 1)
    for name, key in (("stands", "predicted_steps"), ("undone", "undone_steps")):
        counts = np.diff([0, *(getattr(row.ledger, key) for row in log.rows)])
        heights = np.histogram(full_steps, edges, weights=counts)[0] / width
        label = f"{name}: {int(counts.sum()):,}"
        bottom.bar(
            edges[:-1], heights, width, bottom=below, align="edge", color=VERDICTS[name],
            label=label, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
        below = below + heights
    bottom.set(xlabel="full steps", ylabel="predicted per\nfull step", xlim=(0, last))
    bottom.set_ylim(0, 1.6 * (max(below) or 1.0))
    bottom.legend(frameon=False, ncols=2, fontsize="small", loc="upper right")
    tidy(bottom)
    plan, steps = log.start["plan"], [0, *(row.ledger.steps for row in log.rows)]
    ends = [0, plan["warmup"], log.steps - plan["cooldown"], log.steps]
    start, warm, cool, end = np.interp(ends, steps, [0, *full_steps])
    fell_back = (e["step"] for e in log.ledger.events if e["reason"] == log.ledger.fell_back)
    plain = next(fell_back, end)
    warm, cool = min(warm, plain), min(cool, plain)
    for axes in (top, bottom):
        axes.axvspan(start, warm, color="#eef0f3", zorder=0)
        axes.axvspan(cool, end, color="#eef0f3", zorder=0)
    return figure


def seconds_figure(log: RunLog) -> Figure:
    """Draw training loss over the host seconds that full steps and the plug-in took."""
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    seconds = [row.ledger.full_seconds + row.ledger.overhead_seconds for row in log.rows]
    _draw_loss(axes, log, seconds)
    axes.set(xlabel="seconds of training, on the host", xlim=(0, None))
    axes.set_title("Training loss over seconds", fontsize="medium", loc="left")
    return figure


def _draw_loss(axes: Axes, log: RunLog, at: Sequence[float]) -> None:
    loss = smoothed([row.loss for row in log.rows], max(1, len(log.rows) // 40))
    axes.plot(at, loss, color="#264653", linewidth=1.6)
    axes.set_ylabel("training loss\n(running mean)")
    scale(axes)
    tidy(axes)


def skill_figure(log: RunLog) -> Figure:
    """Draw the skill of forecasts and its lower bound over full steps, by kind."""
    title = "Skill: what forecasts explain of the movement"
    return _by_kind(log, SKILL, title, "skill (1: all, 0: chance)", (0.0,))


def length_figure(log: RunLog) -> Figure:
    """Draw the length of forecasts, and the one that fits best, over full steps, by kind."""
    return _by_kind(log, LENGTH, "Length of a forecast", "lengths of the drift", (SHORTEST,))


def persistence_figure(log: RunLog) -> Figure:
    """Draw the persistence of forecasts over full steps, by kind."""
    title, bounds = "Persistence; red: thresholds up to 4", (NEAR.falling, NEAR.rising)
    return _by_kind(log, PERSISTENCE, title, "persistence", bounds)


def pace_figure(log: RunLog) -> Figure:
    """Draw predicted steps per full step, and the advance of each kind, over full steps."""
    title, label = "Predicted steps per full step", "predicted steps;\ndrifts (advance)"
    return _by_kind(log, ADVANCE, title, label, (), _per_full_step(log))


def _by_kind(
    log: RunLog,
    styles: Mapping[str, tuple[str, str]],
    title: str,
    label: str,
    bounds: Sequence[float],
    predicted: tuple[list[int], list[float]] | None = None,
) -> Figure:
    """Draw numbers of every kind over full steps, horizontal ``bounds``, and predicted steps."""
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    if predicted is not None:
        axes.plot(*predicted, color="black", linewidth=1.8, label="predicted steps")
    named = set()
    for kind, steps, known in _numbers(log, *styles):
        for name, (style, text) in styles.items():
            text = text.format(kind)
            axes.plot(
                steps, known[name], color=KINDS.get(kind, "black"), linestyle=style, linewidth=1.6,
                label=None if text in named else text,
            )  # fmt: skip
            named.add(text)
    for bound in bounds:
        axes.axhline(bound, color="#d1495b", linewidth=1)
    axes.set_title(title, fontsize="medium", loc="left")
    axes.set(xlabel="full steps", ylabel=label, xlim=(0, None))
    tidy(axes)
    if axes.get_legend_handles_labels()[0]:
        columns = 3 if predicted is None else 2  # with "advance" names are long
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    else:
        text = "not known yet" if log.end is None else "never known: too few full steps"
        if not log.start["plan"]["predicted"]:
            text = "not measured: no predicted steps were planned"
        if log.ledger.fell_back:
            text = "not known: the run fell back to plain training"
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color="#5c6370")
    return figure


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
