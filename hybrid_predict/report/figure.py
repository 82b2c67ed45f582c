"""Empty figures, and running means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def smoothed(values: list[float | None], span: int = 25) -> np.ndarray:
    """Return the running mean over the last ``span`` values; NaN while none of them is known."""
    data = np.array(values, dtype=float)
    known = [data[max(0, k + 1 - span) : k + 1] for k in range(len(data))]
    known = [part[~np.isnan(part)] for part in known]
    return np.array([part.mean() if len(part) else np.nan for part in known])
