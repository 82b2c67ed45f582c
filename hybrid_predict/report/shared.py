"""What the pages share: one HTML file that needs nothing but itself, its figures and numbers."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (4.8, 3.6)
"""Inches of a figure: two side by side on a wide screen, one below the other on a phone."""


def render(template: str, path: Path, **context: Any) -> Path:
    """Write a page from one of the package's templates.

    Args:
        template: Its name.
        path: Where to write.
        context: What the template uses.

    Returns:
        The page's path.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hybrid_predict", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    path.write_text(environment.get_template(template).render(**context), encoding="utf-8")
    return path


def data_uri(figure: Figure) -> str:
    """A figure as an address that holds the whole drawing."""
    drawing = BytesIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None}, transparent=True)
    return "data:image/svg+xml;base64," + base64.b64encode(drawing.getvalue()).decode("ascii")


def mean_and_sd(spread: Mapping[str, Any], places: int | None = None) -> str:
    """A mean with its standard deviation, if there is one.

    Args:
        spread: As :func:`hybrid_predict.runs.evidence.spread` makes it.
        places: Digits behind the point; None for as many as show two of the deviation.
    """
    mean, sd = spread["mean"], spread["sd"]
    if mean is None:
        return "not finite" if spread["n"] else "none"
    if places is None:
        if not sd:
            return f"{mean:.5g}"
        places = max(0, 1 - math.floor(math.log10(sd)))
    shown = f"{mean:,.{places}f}"
    return shown if sd is None else f"{shown} ± {sd:,.{places}f}"


def tidy(axes: Any) -> None:
    """No frame above and at the right, and faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)


def number(value: float | None) -> float:
    """What a results file holds, with its None as not a number."""
    return math.nan if value is None else value
