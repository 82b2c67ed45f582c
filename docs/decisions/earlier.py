"""Default forecasts of earlier decisions, which the sweeps and forks of their pages vary."""

from __future__ import annotations

from typing import Any

from hybrid_predict import SpectralPredictor


def spectral(
    make: type[SpectralPredictor] = SpectralPredictor, **changes: Any
) -> SpectralPredictor:
    """That of decision 7: the newest gradient counted as in the average, rows as they come."""
    newest = 1.0 - changes.get("decay", 0.95)
    return levelled(make, **{"newest": newest, "level_rows": False, "stretch": 1.0, **changes})


def levelled(
    make: type[SpectralPredictor] = SpectralPredictor, **changes: Any
) -> SpectralPredictor:
    """That of decision 13: a constant share of the newest gradient, and lengths of updates."""
    return make(**{"newest": 0.15, "damped": False, "magnify": 1.0, **changes})


def earlier(**changes: Any) -> dict[str, Any]:
    """Arguments of HybridConfig for decision 7."""
    return {"predictors": {"hidden": spectral()}, **changes}
