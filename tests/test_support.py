"""`speedup="auto"`: every forecast is credited with what it supports."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from hybrid_predict import (
    ConfigError,
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    HybridPredict,
    MomentumPredictor,
)
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.support import ENOUGH, LEAST, LONGEST, support

STEPS = 40


@pytest.mark.parametrize(
    ("horizon", "novelty", "expected"),
    [
        (1.0, 0.0, 1.0),
        (1.0, LEAST, 1.0),
        (1.0, (LEAST + ENOUGH) / 2, 1.25),
        (1.0, ENOUGH, 1.5),
        (1.0, 1.0, 1.5),
        (0.0, 1.0, 1.0),
        (0.5, 1.0, 1.25),
        (LONGEST, 1.0, 1.75),
        (31.0, 1.0, 1.75),
        (1.2, math.nan, 1.6),
    ],
)
def test_long_and_novel_forecasts_support_more(horizon, novelty, expected):
    assert support(horizon, novelty) == pytest.approx(expected)


@dataclass(frozen=True)
class Along(MomentumPredictor):
    """Forecast the update of plain gradient descent, turned away from it by an angle."""

    replaces_update: ClassVar[bool] = True
    novelty: float = 0.0
    scale: float = 1.0

    def observe(self, state, observed, applied, backend, lengths=None):
        pairs = zip(observed, lengths, strict=True)
        state.direction = [self._turned(g * (-length / g.norm())) for g, length in pairs]
        state.count += 1

    def _turned(self, update):
        swapped = update.flip(0)  # orthogonal to it once the part along it is taken out
        along = (swapped * update).sum() / update.square().sum().clamp_min(1e-30)
        other = swapped - along * update
        other *= update.norm() / other.norm().clamp_min(1e-30)
        return math.sqrt(1 - self.novelty) * update + math.sqrt(self.novelty) * other

    def forecast(self, state, horizons, *, closed_loop=True):
        directions = tuple(self.scale * x for x in state.direction)
        return WeightDelta(state.names, directions, tuple(horizons))


def train(config):
    """A run on one batch at so low a rate that every update is much like the last one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    batch, records = torch.randn(16, 4), []
    with HybridEngine(net, optimizer, config) as engine:
        while not engine.done:
            engine.before_step()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            records.append(engine.after_step(loss))
    return engine, records


def auto(predictor, horizon=1.0, **changes):
    settings = {"predictors": {"hidden": predictor}, "horizon": FixedHorizon(updates=horizon)}
    settings |= {"speedup": "auto", "total_steps": STEPS, "cooldown_fraction": 0.0, **changes}
    return HybridConfig(**settings)


@pytest.mark.parametrize(
    ("predictor", "horizon", "compression"),
    [
        (Along(novelty=0.0), 1.0, 1.0),
        (Along(novelty=0.3), 3.0, 1.0),
        (Along(novelty=0.9), 1.0, 1.5),
        (Along(novelty=0.9, scale=1e-12), 1.0, 1.5),
        (Along(novelty=0.9, scale=0.0), 1.0, 1.0),
        (Along(novelty=0.9), 3.0, 1.75),
        (MomentumPredictor(), 1.0, 1.5),
    ],
)
@pytest.mark.parametrize("lag", [0, 3])
def test_a_run_is_as_short_as_its_forecasts_support(predictor, horizon, compression, lag):
    engine, records = train(auto(predictor, horizon, lag=lag))
    assert sum(record.ticks for record in records) == STEPS
    # The first two full steps have no forecast, and the last verdicts are read too late.
    least = 2 + (STEPS - 2) / compression
    assert least - 1 <= len(records) <= least + 1 + lag
    assert engine.ledger.cost == len(records)


@pytest.mark.parametrize("speedup", [1.5, "auto"])
def test_forecasts_that_no_update_follows_earn_nothing(speedup):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    inner = torch.optim.SGD([net[0].weight, net[2].weight], 1e-3)
    rest = torch.optim.SGD([net[4].weight, net[0].bias], 1e-3)
    steps = []
    with HybridEngine(net, [inner, rest], auto(Along(novelty=0.9), speedup=speedup)) as engine:
        while not engine.done:
            engine.before_step()
            loss = net(torch.randn(16, 4)).square().mean()
            loss.backward()
            for optimizer in (inner, rest) if len(steps) < 5 else (rest,):
                optimizer.step()
            engine.after_step(loss)
            net.zero_grad()
            steps.append(engine.clock.equivalent_steps)
    assert engine.ledger.rejected > 5
    assert steps[6:] == list(range(steps[6], STEPS + 1))


@pytest.mark.parametrize("changes", [{"shadow": True}, {"enabled": False}])
def test_nothing_is_compressed_without_applied_forecasts(changes):
    _, records = train(auto(Along(novelty=0.9), **changes))
    assert [record.ticks for record in records] == [1] * STEPS


def test_another_word_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"speedup: .*'fast'.*speedup=\"auto\""):
        HybridConfig(speedup="fast")
    assert HybridPredict("auto").config.speedup == "auto"
    assert HybridConfig(speedup="auto").to_dict()["speedup"] == "auto"
