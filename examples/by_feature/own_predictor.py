"""Your own predictor: a frozen dataclass with three methods.

Look at: skill, which measures the forecasts in the run; predicted steps are taken only while they
have skill.

Run with: python examples/by_feature/own_predictor.py (about 10 seconds on one core)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from waves import train

from hybrid_predict import HybridPredict, WeightDelta
from hybrid_predict.forecast.predictors import AbstractPredictor, PredictorState


@dataclass(frozen=True, kw_only=True)
class MeanPredictor(AbstractPredictor):
    """Forecasts a share of the mean of all displacements so far."""

    coefficient: float = 0.5

    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        return PredictorState(tuple(names), {"mean": [torch.zeros_like(x) for x in like]})

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        state.count += 1
        for mean, x in zip(state.arrays["mean"], displacement, strict=True):
            mean.lerp_(x.to(mean.dtype), 1.0 / state.count)

    def forecast(self, state: PredictorState, rates: Sequence[float]) -> WeightDelta:
        factors = tuple(self.coefficient * rate for rate in rates)
        return WeightDelta(state.names, tuple(state.arrays["mean"]), factors)


def main() -> HybridPredict:
    callback = HybridPredict(predictors={"hidden": MeanPredictor()})
    train(callback)
    print(f"skill {callback.ledger.skill:.2f}; {callback.ledger}")
    return callback


if __name__ == "__main__":
    main()
