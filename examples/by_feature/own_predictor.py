"""A predictor of your own: a frozen dataclass with three methods, checked by check_predictor.

Look at: check_predictor, which raises a ContractError if a method does not behave as it must. In
the run, skill measures the forecasts; predicted steps are made only while they have skill.

Run with: python examples/by_feature/own_predictor.py (about 10 seconds on one core)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waves import train

from hybrid_predict import HybridPredict, WeightDelta
from hybrid_predict.forecast.predictors import AbstractPredictor, PredictorState
from hybrid_predict.testing import check_predictor


@dataclass(frozen=True, kw_only=True)
class MeanPredictor(AbstractPredictor):
    """Forecasts a share of the mean of all displacements so far."""

    coefficient: float = 0.5

    def init(self, names: Sequence[str], like: Sequence[Any], backend: Any) -> PredictorState:
        return PredictorState(tuple(names), {"mean": backend.zeros(like)})

    def observe(self, state: PredictorState, displacement: Sequence[Any], backend: Any) -> None:
        state.count += 1
        decay = 1.0 - 1.0 / state.count
        state.arrays["mean"] = backend.average(state.arrays["mean"], displacement, decay)

    def forecast(self, state: PredictorState, rates: Sequence[Any]) -> WeightDelta:
        factors = tuple(self.coefficient * rate for rate in rates)
        return WeightDelta(state.names, tuple(state.arrays["mean"]), factors)


def main() -> HybridPredict:
    check_predictor(MeanPredictor())
    callback = HybridPredict(predictors={"hidden": MeanPredictor()})
    train(callback)
    print(f"skill {callback.ledger.skill:.2f}; {callback.ledger}")
    return callback


if __name__ == "__main__":
    main()
