"""Predicted steps that do not go downhill end in a run; those along the drift do not."""

import pytest
import torch
from loops import Run, net

from benchmarks.placebos import RandomForecast, ShuffledForecast
from hybrid_predict import FittedPredictor, HybridConfig
from hybrid_predict.forecast.predictors import MomentumPredictor
from hybrid_predict.policy.verdict import ENDED

MOST = 10
"""Verdicts until placebos have ended."""


def momentum(coefficient=0.5):
    return MomentumPredictor(coefficient=coefficient, gated=False)


PLACEBOS = {
    "random": RandomForecast(inner=momentum(1.0), gated=False),
    "shuffled": ShuffledForecast(inner=momentum(1.0), gated=False),
}


def task(predictor, sign=1.0, **settings):
    """A small net on noisy targets; in a still smaller one random forecasts take longer to end."""

    def loss(model, k):
        generator = torch.Generator().manual_seed(k)
        x = torch.randn(32, 16, generator=generator)
        noise = 0.3 * torch.randn(32, 1, generator=generator)
        return sign * (model(x) - x.sum(1, keepdim=True).sin() - noise).square().mean()

    model = net(16, 64, 64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, maximize=sign < 0)
    options = {"total_steps": 90, "max_overhead": 1e9, "watch_loss": sign > 0, **settings}
    return Run(model, optimizer, HybridConfig(predictors={"hidden": predictor}, **options), loss)


OTHERWISE = {"updates": {}, "sign": -1.0, "history_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("predictor", "settings"),
    [*((one, {}) for one in PLACEBOS.values()), (PLACEBOS["random"], OTHERWISE)],
    ids=str,
)
def test_placebos_end_within_ten_verdicts(predictor, settings):
    run = task(predictor, **settings).finish()
    verifying = [r.step for r in run.records if r.predicted]
    assert 6 <= len(verifying) <= MOST
    assert ENDED in run.reasons
    ledger = run.engine.ledger
    assert (ledger.steps, ledger.predicted_steps) == (90, len(verifying))
    assert ledger.corrected_steps > verifying[-1] + 30 or "updates" in settings


@pytest.mark.parametrize(
    ("predictor", "settings"),
    [(FittedPredictor(gated=False), {}), (momentum(), {}), (momentum(1.0), OTHERWISE)],
    ids=str,
)
def test_forecasts_along_the_drift_do_not_end(predictor, settings):
    run = task(predictor, **settings).finish()
    assert ENDED not in run.reasons
    assert run.engine.ledger.predicted_steps == 30
