"""Predicted steps that do not go downhill end in a run; those along the drift do not."""

import copy

import pytest
import torch
from loops import same_bits
from torch import nn

from hybrid_predict import FittedPredictor, HybridConfig, HybridEngine
from hybrid_predict.forecast.predictors import MomentumPredictor
from hybrid_predict.rules.verdict import ENDED
from hybrid_predict.testing.placebos import NegatedForecast, RandomForecast, ShuffledForecast

MOST = 10
"""Verdicts until placebos have ended."""


def momentum(coefficient=0.5):
    return MomentumPredictor(coefficient=coefficient, gated=False)


PLACEBOS = {
    "negated": NegatedForecast(inner=momentum(), gated=False),
    "negated fitted": NegatedForecast(inner=FittedPredictor(gated=False), gated=False),
    "four times the drift, negated": momentum(-4.0),
    "random": RandomForecast(inner=momentum(1.0), gated=False),
    "shuffled": ShuffledForecast(inner=momentum(1.0), gated=False),
}
REAL = {"half": momentum(), "whole": momentum(1.0)}


class Task:
    """A small net on noisy targets; in a still smaller one random forecasts take longer to end."""

    def __init__(self, predictor, sign=1.0, **settings):
        torch.manual_seed(0)
        layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
        self.net, self.sign = nn.Sequential(*layers), sign
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3, maximize=sign < 0)
        options = {"total_steps": 150, "max_overhead": 1e9, **settings}
        config = HybridConfig(predictors={"hidden": predictor}, **options)
        self.engine = HybridEngine(self.net, self.optimizer, config)

    def step(self):
        generator = torch.Generator().manual_seed(self.engine.ledger.full_steps)
        x = torch.randn(32, 16, generator=generator)
        noise = 0.3 * torch.randn(32, 1, generator=generator)
        self.engine.before_step()
        loss = (self.net(x) - x.sum(1, keepdim=True).sin() - noise).square().mean()
        (self.sign * loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.engine.after_step(loss)

    def finish(self):
        records = []
        while not self.engine.done:
            records.append(self.step())
        return records

    @property
    def ended(self):
        return ENDED in [event["reason"] for event in self.engine.ledger.events]


every_way = pytest.mark.parametrize(
    "settings",
    [{}, {"updates": {}}, {"lag": 4}, {"sign": -1.0}, {"history_dtype": "bfloat16"}],
    ids=["corrected", "not corrected", "read late", "maximized", "16 bits"],
)


@every_way
@pytest.mark.parametrize("predictor", PLACEBOS.values(), ids=PLACEBOS.keys())
def test_placebos_end_within_ten_verdicts(predictor, settings):
    task = Task(predictor, **settings)
    records = task.finish()
    verifying = [r.step for r in records if r.predicted]
    assert 6 <= len(verifying) <= MOST
    assert task.ended
    ledger = task.engine.ledger
    assert (ledger.steps, ledger.predicted_steps) == (150, len(verifying))
    assert ledger.corrected_steps > verifying[-1] + 50 or "updates" in settings


@every_way
@pytest.mark.parametrize("predictor", REAL.values(), ids=REAL.keys())
def test_forecasts_along_the_drift_do_not_end(predictor, settings):
    task = Task(predictor, **settings)
    task.finish()
    assert not task.ended
    assert task.engine.ledger.predicted_steps == 50


def test_fitted_forecasts_do_not_end():
    task = Task(FittedPredictor(gated=False))
    task.finish()
    assert not task.ended


@pytest.mark.parametrize("lag", [0, 3])
def test_evidence_is_resumed_bit_for_bit(lag):
    whole = Task(PLACEBOS["negated"], lag=lag)
    records = [whole.step() for _ in range(15)]
    assert 0 < sum(r.predicted for r in records) < 6  # in the middle of the test
    parts = whole.engine, whole.net, whole.optimizer
    saved = copy.deepcopy([part.state_dict() for part in parts])
    other = Task(PLACEBOS["negated"], lag=lag)
    for part, state in zip((other.engine, other.net, other.optimizer), saved, strict=True):
        part.load_state_dict(state)
    steps = [[(r.step, r.predicted, r.verdict) for r in task.finish()] for task in (whole, other)]
    assert steps[0] == steps[1]
    assert whole.ended and other.ended
    assert same_bits(list(whole.net.parameters()), list(other.net.parameters()))


def test_every_optimizer_adds_what_its_predicted_steps_were():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    first, *others = net.parameters()
    optimizers = [torch.optim.AdamW(own, lr=3e-3) for own in ([first], others)]
    config = HybridConfig(total_steps=90, max_overhead=1e9, predictors={"hidden": momentum(-1.0)})
    engine = HybridEngine(net, optimizers, config)
    while not engine.done:
        engine.before_step()
        loss = net(torch.randn(16, 8)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        engine.after_step(loss)
    assert engine.ledger.predicted_steps == 6
