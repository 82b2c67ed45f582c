"""The page about single runs and its figure, and what all pages and figures share."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.config import KINDS
from hybrid_predict.runs.log import ONE_RUN, PROOF, RunLog, events, facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def run_figure(log: RunLog) -> Figure:
    """Draw training loss, predicted steps by verdict, and skill by kind over full steps.

    Skill is drawn from two windows on, with its lower bound (dashed). What there is none of is
    said in its place.
    """
    figure = new_figure(figsize=(SIZE[0], 1.5 * SIZE[1]))
    top, middle, bottom = figure.subplots(3, 1, height_ratios=(2, 1, 1), sharex=True)
    ledgers = [row.ledger for row in log.rows]
    full_steps = [ledger.full_steps for ledger in ledgers]
    loss = np.array([row.loss for row in log.rows], dtype=float)  # unknown ones are NaN
    if np.isfinite(loss).any():
        top.plot(full_steps, loss, color="#264653")
    top.set_ylabel("training loss")
    scale(top)
    stand = [ledger.predicted_steps for ledger in ledgers]
    undone = [ledger.undone_steps for ledger in ledgers]
    if any(stand + undone):
        middle.plot(full_steps, stand, color="#2a9d8f", label=f"stand: {max(stand):,}")
        middle.plot(full_steps, undone, color="#d1495b", label=f"undone: {max(undone):,}")
    middle.set(ylabel="predicted\nsteps", ylim=(0, None))
    for kind in log.ledger.skills:
        found = [(ledger.full_steps, ledger.skills.get(kind)) for ledger in ledgers]
        known = [(n, skill) for n, skill in found if skill is not None and skill["windows"] > 1]
        places = [n for n, _ in known]
        color = f"C{KINDS.index(kind)}"
        if known:
            bottom.plot(places, [skill["mean"] for _, skill in known], color=color, label=kind)
            bottom.plot(places, [skill["lower"] for _, skill in known], "--", color=color)
    bottom.set(xlabel="full steps", ylabel="skill", xlim=(0, max(full_steps, default=1)))
    for axes, none in ((top, "none was seen"), (middle, "none was made"), (bottom, "not known")):
        tidy(axes)
        if not axes.lines:
            axes.set_yticks([])
            axes.text(0.5, 0.5, none, transform=axes.transAxes, ha="center", va="center")
        elif axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
    return figure


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
    return render(
        "runs/run.html.jinja",
        runs=[
            {"log": log, "events": events(log), "figure": data_uri(run_figure(log))} for log in logs
        ],
        rows=[[name, *(each.get(name, "unknown") for each in table)] for name in names],
        one_run=ONE_RUN,
        proof=PROOF,
    )
