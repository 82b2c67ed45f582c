"""Rows, the newest gradient, the shape of matrices and the end: the variants of decision 13."""

from __future__ import annotations

from typing import Any

from earlier import earlier, levelled

from hybrid_predict import AlignmentHorizon


def _spectral(**changes: Any) -> dict[str, Any]:
    return {"predictors": {"hidden": levelled(**changes)}}


VARIANTS: dict[str, dict[str, Any]] = {
    "default": _spectral(),
    "before": earlier(),
    "rows as they come": _spectral(level_rows=False),
    "newest gradient 0.05": _spectral(newest=0.05),
    "newest gradient 0.1": _spectral(newest=0.1),
    "newest gradient 0.3": _spectral(newest=0.3),
    "no stretch": _spectral(stretch=1.0),
    "stretch up to 5": _spectral(stretch=5.0),
    "forecasts until 99 %": {**_spectral(), "cooldown_fraction": 0.01},
    "floor 1.5": {**_spectral(), "horizon": AlignmentHorizon(floors={"hidden": 1.5})},
}
