"""Draws the figure of how_it_works.md: a run as a row of steps, and the path of the weights.

Run with: python docs/figures/steps.py
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

BLUE, ORANGE, GREY, RED = "#1f5fa8", "#d97706", "#6b7280", "#b91c1c"

RUN = "FFFFPVFPVFxvFFPVFF"
"""F a full step, P a predicted one, V its verifying step; x one that is undone by v."""

PATH = [(0.0, 0.0), (0.9, 0.75), (1.9, 0.35), (2.8, 1.15)]
"""Weights after full steps, in a plane."""


def row(axes: Axes) -> None:
    """The steps of a run, in the order in which they are taken."""
    colour = {"F": BLUE, "V": BLUE, "P": ORANGE, "x": RED, "v": RED}
    for place, kind in enumerate(RUN):
        full = kind in "FVv"
        box = FancyBboxPatch(
            (place + 0.1, 0.2 if full else 0.35), 0.8, 0.8 if full else 0.5,
            boxstyle="round,pad=0,rounding_size=0.08", linewidth=1.6,
            edgecolor=colour[kind], facecolor=colour[kind] if kind in "FV" else "white",
            linestyle="-" if full else (0, (2, 1)),
        )  # fmt: skip
        axes.add_patch(box)
        letter = "P" if kind == "x" else kind.upper()
        inside = "white" if kind in "FV" else colour[kind]
        axes.text(place + 0.5, 0.6, letter, color=inside, ha="center", va="center")
    axes.text(2, 1.25, "warm-up", color=GREY, ha="center")
    axes.text(len(RUN) - 1, 1.25, "cooldown", color=GREY, ha="center")
    axes.text(11, 1.25, "undone", color=RED, ha="center")
    axes.set(xlim=(-0.1, len(RUN) + 0.1), ylim=(0.1, 1.6))
    axes.set_axis_off()
    axes.set_title("A run: F full, P predicted, V verifying (a full step)", loc="left", fontsize=12)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look: object) -> None:
    """An arrow between two points."""
    style = {"arrowstyle": "-|>", "lw": 2, "shrinkA": 2, "shrinkB": 2, **look}
    axes.annotate("", end, start, arrowprops=style)


def path(axes: Axes) -> None:
    """The weights under full steps, a predicted step and its verifying step."""
    for start, end in pairwise(PATH):
        arrow(axes, start, end, color=BLUE)
    last = PATH[-1]
    drift = (last[0] / 3, last[1] / 3)
    moved = (last[0] + 1.1 * drift[0], last[1] + 1.1 * drift[1])
    arrow(axes, last, moved, color=ORANGE, linestyle="--")
    arrow(axes, moved, (moved[0] + 1.0, moved[1] + 0.05), color=BLUE)
    arrow(axes, (0.15, -0.55), (0.15 + drift[0] * 1.5, -0.55 + drift[1] * 1.5), color=GREY)
    axes.text(0.15 + drift[0] * 1.6, -0.42, "drift d: their average", color=GREY, va="center")
    axes.text(0.1, 0.95, "full steps: displacements D", color=BLUE)
    axes.text(moved[0] - 0.45, moved[1] - 0.55, "predicted step Δ̂ = λ η d", color=ORANGE)
    axes.text(moved[0] + 0.15, moved[1] + 0.2, "verifying step", color=BLUE)
    arrow(
        axes, (moved[0] - 0.1, moved[1] + 0.12), (last[0], last[1] + 0.15), color=RED,
        linestyle=":", connectionstyle="arc3,rad=0.45",
    )  # fmt: skip
    axes.text(last[0] - 0.75, last[1] + 0.62, "back, if undone", color=RED)
    axes.set(xlim=(-0.1, 5.3), ylim=(-0.65, 1.95))
    axes.set_axis_off()
    axes.set_title("The weights, under some of these steps", loc="left", fontsize=12)


def draw(target: Path) -> None:
    """Write the figure.

    Args:
        target: The SVG file.
    """
    plain = {"svg.fonttype": "none", "svg.hashsalt": "steps", "font.size": 11}
    with plt.rc_context(plain):
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=(7.2, 4.0), height_ratios=(1, 2.2), layout="constrained"
        )
        row(upper)
        path(lower)
        figure.savefig(target, facecolor="white", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg"))
