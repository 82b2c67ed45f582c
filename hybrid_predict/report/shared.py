"""Rendering, figures and numbers for all HTML pages; a page is one file without links to others."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.runs.files import replace_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (4.8, 3.6)
"""Width and height of a figure in inches; two fit side by side on a wide screen."""


def render(template: str, path: Path, **context: Any) -> Path:
    """Write a page from one of the package's templates.

    Args:
        template: Name of the template.
        path: File to write.
        context: Variables of the template.

    Returns:
        The path.

    Raises:
        OSError: If the file cannot be written; see
            :func:`~hybrid_predict.runs.files.replace_text`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hybrid_predict", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return replace_text(path, environment.get_template(template).render(**context))


def data_uri(figure: Figure) -> str:
    """Return a figure as a data URI of SVG."""
    drawing = BytesIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None}, transparent=True)
    return "data:image/svg+xml;base64," + base64.b64encode(drawing.getvalue()).decode("ascii")


def mean_and_sd(spread: Mapping[str, Any], places: int | None = None) -> str:
    """Format a mean with its standard deviation, if there is one.

    Args:
        spread: Result of :func:`hybrid_predict.runs.evidence.spread`.
        places: Decimal places; None for two significant digits of the deviation.
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
    """Remove the frame at the top and the right, and draw faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)


def number(value: float | None) -> float:
    """Return a number of a results file, with NaN for None."""
    return math.nan if value is None else value
