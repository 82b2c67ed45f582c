"""The default forecast before decision 13: what sweeps and forks of pages 7 to 11 vary."""

from __future__ import annotations

from typing import Any

from hybrid_predict import SpectralPredictor


def spectral(
    make: type[SpectralPredictor] = SpectralPredictor, **changes: Any
) -> SpectralPredictor:
    """The predictor as it was: the newest gradient counted as in the average, rows as they come."""
    newest = 1.0 - changes.get("decay", 0.95)
    return make(newest=newest, level_rows=False, stretch=1.0, **changes)


def earlier(**changes: Any) -> dict[str, Any]:
    """Arguments of HybridConfig."""
    return {"predictors": {"hidden": spectral()}, **changes}
