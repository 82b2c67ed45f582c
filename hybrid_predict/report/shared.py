"""Parts of all HTML pages: templates, figures and numbers."""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.errors import HybridPredictError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (4.2, 3.3)
"""Width and height of a figure in inches; two fit side by side on a wide screen."""

logger = logging.getLogger(__name__)


def render(template: str, **context: Any) -> str:
    """Return a page from one of the package's templates, as one file without links to others."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hybrid_predict", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context)


def new_figure(**kwargs: Any) -> Figure:
    """Return an empty matplotlib figure, without pyplot and its global state.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("A figure", "cli") from error
    return Figure(layout="constrained", **kwargs)


def data_uri(draw: Callable[..., Figure], *arguments: Any) -> str:
    """Draw a figure, and return it as a data URI of SVG, which is empty if it cannot be drawn.

    Names are drawn as they are: matplotlib would read two dollar signs as mathematics.
    """
    drawing = BytesIO()
    try:
        figure = draw(*arguments)
        for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
            text.set_parse_math(False)  # type: ignore[attr-defined]
        figure.savefig(drawing, format="svg", metadata={"Date": None}, transparent=True)
    except HybridPredictError:
        raise
    except Exception:
        logger.warning("%s failed; the page goes without it.", draw.__name__, exc_info=True)
        return "data:,"
    return "data:image/svg+xml;base64," + base64.b64encode(drawing.getvalue()).decode("ascii")


def mean_and_sd(spread: Mapping[str, Any], places: int | None = None) -> str:
    """Format a mean with its standard deviation, if there is one.

    Without decimal ``places``, the deviation has two significant digits.
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


def tidy(axes: Axes) -> None:
    """Remove the frame at the top and the right, and draw faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)


def scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic if the lines are positive and span a power of ten."""
    values = np.concatenate([np.empty(0), *(line.get_ydata() for line in axes.lines)])
    values = values[np.isfinite(values)]
    if len(values) and values.max() > 10 * values.min() > 0:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")  # 0.2, where the default is a power
        axes.yaxis.set_minor_formatter(NullFormatter())


def smoothed(values: list[float | None], span: int) -> np.ndarray:
    """Return the running mean over the last ``span`` values; NaN while none of them is known."""
    data = np.array(values, dtype=float)
    known = [data[max(0, k + 1 - span) : k + 1] for k in range(len(data))]
    known = [part[~np.isnan(part)] for part in known]
    return np.array([part.mean() if len(part) else np.nan for part in known])
