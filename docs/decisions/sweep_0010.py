"""How far to forecast what, and what a horizon below 1 means: the variants of decision 10."""

from __future__ import annotations

from typing import Any

from hybrid_predict import AlignmentHorizon, FixedHorizon

OTHERS = dict.fromkeys(("embedding", "head", "vector"), "momentum")

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "floor 2": {"horizon": AlignmentHorizon(floors={"hidden": 2.0})},
    "horizon ½, half the update": {"horizon": FixedHorizon(updates=0.5)},
    "floor 0, target -0.03": {"horizon": AlignmentHorizon(floors={}, target=-0.03)},
    "other kinds by momentum, floor 0": {"predictors": {"hidden": "spectral", **OTHERS}},
}
