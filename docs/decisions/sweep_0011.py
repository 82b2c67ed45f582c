"""When forecasts end, how much they average and how exactly they flatten: decision 11."""

from __future__ import annotations

from typing import Any

from hybrid_predict import SpectralPredictor


def _spectral(**changes: Any) -> dict[str, Any]:
    return {"predictors": {"hidden": SpectralPredictor(**changes)}}


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "forecasts until the end": {"cooldown_fraction": 0.0},
    "forecasts until 85 %": {"cooldown_fraction": 0.15},
    "forecasts until 75 %": {"cooldown_fraction": 0.25},
    "decay 0.9": _spectral(decay=0.9),
    "decay 0.98": _spectral(decay=0.98),
    "3 Newton-Schulz steps": _spectral(iterations=3),
}
