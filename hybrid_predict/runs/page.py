"""The page about single runs and its figure, and what all pages and figures share."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.runs.log import ONE_RUN, PROOF, RunLog, advice, events, facts

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


def run_figure(log: RunLog) -> Figure | None:
    """Draw over full steps what a log has of loss, validation, predicted steps and skill.

    A validation is drawn as the best value so far. None if a log has nothing of them.
    """
    ledgers = [row.ledger for row in log.rows]
    best = [each.best or {"metric": "", "value": None} for each in ledgers]
    panels: dict[str, dict[str, list[Any]]] = {
        "training loss": {"": [row.loss for row in log.rows]},
        f"best {best[-1]['metric'] if best else ''}\nso far": {
            "": [each["value"] for each in best]
        },
        "predicted\nsteps": {
            f"stand: {log.ledger.predicted_steps:,}": [x.predicted_steps or None for x in ledgers],
            f"undone: {log.ledger.undone_steps:,}": [x.undone_steps or None for x in ledgers],
        },
        "skill": {
            kind: [each.skills.get(kind, {}).get("mean") for each in ledgers]
            for kind in log.ledger.skills
        },
    }
    panels = {name: lines for name, lines in panels.items() if any(map(any, lines.values()))}
    if not panels:
        return None
    figure = new_figure(figsize=(1.5 * SIZE[0], 0.4 + 1.5 * len(panels)))
    below = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (name, lines) in zip(below, panels.items(), strict=True):
        for label, values in lines.items():
            known = np.array(values, dtype=float)  # unknown ones are NaN
            marker = "." if np.isfinite(known).sum() == 1 else ""
            axes.plot([each.full_steps for each in ledgers], known, marker=marker, label=label)
        axes.set_ylabel(name)
        axes.ticklabel_format(axis="y", useOffset=False)
        tidy(axes)
        if not name.startswith("predicted"):  # counts stay in proportion
            scale(axes)
        if len(lines) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    below[-1].set(xlabel="full steps", xlim=(0, log.ledger.full_steps))
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


def run_page(log: RunLog) -> str:
    """Return a page about one run: its cost, not its quality."""
    figure = run_figure(log)
    return render(
        "runs/run.html.jinja",
        log=log,
        facts=facts(log),
        events=events(log),
        advice="\n".join(advice(log)),
        figure=figure and data_uri(figure),
        one_run=ONE_RUN,
        proof=PROOF,
    )
