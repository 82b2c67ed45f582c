"""The share of the newest gradient and the length of forecasts: the variants of decision 14."""

from __future__ import annotations

from typing import Any

from earlier import levelled

from hybrid_predict import SpectralPredictor


def _spectral(**changes: Any) -> dict[str, Any]:
    return {"predictors": {"hidden": SpectralPredictor(**changes)}}


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "before": {"predictors": {"hidden": levelled()}},
    "share 0.15 at every angle": _spectral(newest=0.15, damped=False),
    "share 0.25": _spectral(newest=0.25),
    "lengths of updates": _spectral(magnify=1.0),
    "at most twice as long": _spectral(magnify=2.0),
    "rate 0.01": _spectral(muon_rate=0.01),
    "rate 0.03": _spectral(muon_rate=0.03),
}
