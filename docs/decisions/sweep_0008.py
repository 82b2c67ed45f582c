"""Whether learned forecasts pay: the variants of decision 8."""

from __future__ import annotations

from typing import Any

from candidates import EnsemblePredictor, OuterNesterov, RidgePredictor
from candidates_window import AndersonPredictor, LowRankPredictor, NowcastPredictor
from earlier import earlier

from hybrid_predict import AlignmentHorizon, LinearPredictor, MomentumPredictor

RULE = AlignmentHorizon(floors={}, rate=0.3, target=-0.03)


def _added(predictor: Any) -> dict[str, Any]:
    """A forecast of hidden matrices in addition to the update, by the rule."""
    return earlier(predictors={"hidden": predictor}, horizon=RULE)


VARIANTS: dict[str, dict[str, Any]] = {
    "momentum": _added(MomentumPredictor()),
    "linear": _added(LinearPredictor()),
    "outer Nesterov": _added(OuterNesterov()),
    "ridge": _added(RidgePredictor()),
    "ensemble": _added(EnsemblePredictor()),
    "dynamic modes": _added(LowRankPredictor()),
    "Anderson": _added(AndersonPredictor()),
    # Its network has nothing to say before the 24th full step.
    "nowcast": {**_added(NowcastPredictor()), "warmup_fraction": 0.05},
}
