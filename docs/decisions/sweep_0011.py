"""When forecasts end, how much they average and how exactly they flatten: decision 11."""

from __future__ import annotations

from typing import Any

from earlier import earlier, spectral

VARIANTS: dict[str, dict[str, Any]] = {
    "default": earlier(),
    "forecasts until the end": earlier(cooldown_fraction=0.0),
    "forecasts until 85 %": earlier(cooldown_fraction=0.15),
    "forecasts until 75 %": earlier(cooldown_fraction=0.25),
    "decay 0.9": earlier(predictors={"hidden": spectral(decay=0.9)}),
    "decay 0.98": earlier(predictors={"hidden": spectral(decay=0.98)}),
    "3 Newton-Schulz steps": earlier(predictors={"hidden": spectral(iterations=3)}),
}
