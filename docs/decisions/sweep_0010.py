"""How far to forecast what, and what a horizon below 1 means: the variants of decision 10."""

from __future__ import annotations

from typing import Any

from earlier import earlier, spectral

from hybrid_predict import AlignmentHorizon, FixedHorizon

OTHERS = dict.fromkeys(("embedding", "head", "vector"), "momentum")

VARIANTS: dict[str, dict[str, Any]] = {
    "default": earlier(),
    "floor 2": earlier(horizon=AlignmentHorizon(floors={"hidden": 2.0})),
    "horizon ½, half the update": earlier(horizon=FixedHorizon(updates=0.5)),
    "floor 0, target -0.03": earlier(horizon=AlignmentHorizon(floors={}, target=-0.03)),
    "other kinds by momentum, floor 0": earlier(predictors={"hidden": spectral(), **OTHERS}),
}
