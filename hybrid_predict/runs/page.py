"""The page about single runs and its figure, and what all pages and figures share."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.config import KINDS
from hybrid_predict.runs.log import ONE_RUN, PROOF, RunLog, advice, events, facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = dict[tuple[str, str], list[tuple[float, float]]]
"""Points of the lines of a panel, by label and style."""

SIZE = (4.2, 3.3)
"""Width and height of a figure in inches; two fit side by side on a wide screen."""


def new_figure(**kwargs: Any) -> Figure:
    """Return an empty matplotlib figure, without pyplot and its global state."""
    from matplotlib.figure import Figure

    return Figure(layout="constrained", **kwargs)


def data_uri(figure: Figure) -> str:
    """Return a figure as a data URI of SVG; text between two dollar signs is mathematics in it."""
    drawing = BytesIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None}, transparent=True)
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
        axes.set_yscale("log")


def run_figure(log: RunLog) -> Figure | None:
    """Draw over full steps what a log has of loss, validation, predicted steps and skill.

    A validation is drawn as the best value so far. Skill is drawn from two windows on, with its
    lower bound (dashed). None if a log has nothing of them.
    """
    panels = {name: lines for name, lines in _panels(log).items() if lines}
    if not panels:
        return None
    figure = new_figure(figsize=(1.5 * SIZE[0], 0.4 + 1.5 * len(panels)))
    below = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (name, lines) in zip(below, panels.items(), strict=True):
        for (label, style), points in lines.items():
            marker = "." if len(points) == 1 else ""
            axes.plot(*zip(*points, strict=True), style, marker=marker, label=label)
        axes.set_ylabel(name)
        axes.ticklabel_format(axis="y", useOffset=False)
        tidy(axes)
        scale(axes)
        if len(lines) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    below[-1].set(xlabel="full steps", xlim=(0, log.ledger.full_steps))
    return figure


def _panels(log: RunLog) -> dict[str, Lines]:
    last = log.ledger
    metric = "" if last.best is None else f"best {last.best['metric']}\nso far"
    panels: dict[str, Lines] = {
        "training loss": {},
        metric: {},
        "predicted\nsteps": {},
        "skill": {},
    }

    def add(panel: str, label: str, style: str, value: float) -> None:
        points = panels[panel].setdefault((label, style), [])
        points.append((ledger.full_steps, value))

    for row in log.rows:
        ledger = row.ledger
        if row.loss is not None:
            add("training loss", "", "C0", row.loss)
        if ledger.best is not None:
            add(metric, "", "C0", ledger.best["value"])
        if last.predicted_steps + last.undone_steps:
            add(
                "predicted\nsteps", f"stand: {last.predicted_steps:,}", "C2", ledger.predicted_steps
            )
            add("predicted\nsteps", f"undone: {last.undone_steps:,}", "C3", ledger.undone_steps)
        for kind, skill in ledger.skills.items():
            if skill["windows"] > 1:
                color = f"C{KINDS.index(kind)}"
                add("skill", kind, color, skill["mean"])
                add("skill", f"_{kind}", f"{color}--", skill["lower"])  # not in the legend
    return panels


def render(template: str, **context: Any) -> str:
    """Return a page from one of the package's templates, as one file without links to others."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context)


def run_page(logs: Sequence[RunLog]) -> str:
    """Return a page about one run, or about several side by side: their cost, not their quality."""
    table = [facts(log) for log in logs]
    names = dict.fromkeys(name for each in table for name in each)
    figures = [run_figure(log) for log in logs]
    return render(
        "runs/run.html.jinja",
        runs=[
            {
                "log": log,
                "events": events(log),
                "advice": "\n".join(advice(log)),
                "figure": figure and data_uri(figure),
            }
            for log, figure in zip(logs, figures, strict=True)
        ],
        rows=[[name, *(each.get(name, "unknown") for each in table)] for name in names],
        one_run=ONE_RUN,
        proof=PROOF,
    )
