"""Tables of rows, and what their cells share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from benchmarks.arms import ARMS
from benchmarks.gains import Figures
from benchmarks.plan import Row
from hybrid_predict.runs.evidence import mean_and_sd

NONE = "n/a"

COLORS = {  # of arms, in figures
    "plain": "#264653",
    "corrected": "#edae49",
    "hybrid": "#d1495b",
    "auto": "#d1495b",
    "muon": "#30638e",
}


def view(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a Markdown table of rows, whose cells are by the titles of the columns."""
    kept = list(rows)
    if not kept:
        return "Not measured yet."
    lines = [list(kept[0]), ["---"] * len(kept[0]), *(list(row.values()) for row in kept)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def loss_text(figures: Figures) -> str:
    """Format the final loss, and how many runs diverged."""
    loss = figures.loss
    diverged = len(figures.rows) - loss["n"]
    lost = f" ({diverged} diverged)" if diverged else ""
    return f"{NONE if loss['mean'] is None else mean_and_sd(loss, 4)}{lost}"


def rate_text(figures: Figures) -> str:
    """Format the learning rate, and the factor on that of hidden matrices."""
    hidden = figures.first["hidden"]
    return f"{figures.first['rate']:g}" + (f" x {hidden:g}" if hidden != 1 else "")


def steps_text(figures: Figures, field: str = "full_steps") -> str:
    """Format the mean number of full steps, or of others."""
    return f"{figures.mean(field):,.0f}"


def count(number: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{number} {what}{'s' * (number != 1)}"


def states_text(rows: Iterable[Row]) -> str:
    """Tell from how many states of the code the runs with the plug-in come; empty if it is one."""
    mine = {name for name, arm in ARMS.items() if arm.plugin is not None}
    states = len({row["code"] for row in rows if row["arm"] in mine})
    return f" Runs with the plug-in come from {states} states of the code." if states > 1 else ""
