"""Forecasts made of gradients stand in for the optimizer's update, weight decay excepted."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hybrid_predict import (
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    MomentumPredictor,
    SpectralPredictor,
)

STEPS, RATE, DECAY = 12, 0.01, 0.1

MAKERS = {
    "adamw": lambda p: AdamW(p, RATE, weight_decay=DECAY),
    "adam": lambda p: Adam(p, RATE, weight_decay=DECAY),
    "sgd": lambda p: SGD(p, RATE, momentum=0.9, weight_decay=DECAY),
    "adam, decoupled": lambda p: Adam(p, RATE, weight_decay=DECAY, decoupled_weight_decay=True),
}


def run(
    make, spoiled: int | None = None, sign: float = 1.0, **changes
) -> Iterator[tuple[nn.Module, dict, Tensor]]:
    """Full steps; yields the model, its weights before, and the first one at the gradient."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer: Optimizer = make(net.parameters())
    settings = {"speedup": 1, "total_steps": STEPS, "cooldown_fraction": 0.0, **changes}
    engine = HybridEngine(net, optimizer, HybridConfig(**settings))
    for k in range(STEPS):
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        engine.before_step()
        point = net[0].weight.detach().clone()
        loss = net(torch.randn(16, 4)).square().mean()
        (loss * (float("nan") if k == spoiled else sign)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        engine.after_step(loss)
        yield net, before, point
    engine.detach()


@pytest.mark.parametrize("name", MAKERS)
def test_hidden_matrices_end_at_the_forecast_point_less_their_decay(name):
    shrink = 1 - RATE * DECAY if name in ("adamw", "adam, decoupled") else 1.0
    for k, (net, before, point) in enumerate(run(MAKERS[name])):
        moved = not torch.equal(point, before["0.weight"])
        assert moved == (k >= 2)
        if moved:
            assert torch.equal(net[0].weight, point * shrink)
        assert not torch.equal(net[4].weight, before["4.weight"])  # the head's update stays
        assert not torch.equal(net[0].bias, before["0.bias"])


@dataclass(frozen=True)
class Uneven(FixedHorizon):
    """Another horizon for the first matrix than for the rest."""

    first: float = 0.0

    def horizons(self, state):
        return [self.first, *super().horizons(state)[1:]]


@pytest.mark.parametrize("horizon", [0.0, 0.25, 1.0, 3.0])
def test_a_horizon_below_one_leaves_the_rest_of_the_update(horizon):
    rule, moved = Uneven(updates=1.0, first=horizon), 0

    def sgd(parameters):
        return SGD(parameters, RATE, weight_decay=DECAY)

    gradients = []
    for k, (net, before, point) in enumerate(run(sgd, horizon=rule)):
        if k == 0:
            net[0].weight.register_hook(gradients.append)
        elif k >= 2:
            moved += not torch.equal(point, before["0.weight"])
            update = -RATE * (gradients[-1] + DECAY * point)
            expected = point + max(0.0, 1 - horizon) * update
            torch.testing.assert_close(net[0].weight.detach(), expected, rtol=1e-5, atol=1e-7)
    assert moved == (STEPS - 2) * (horizon > 0)


def test_forecasts_made_of_displacements_keep_the_update():
    for net, before, point in run(MAKERS["adamw"], predictors={"hidden": MomentumPredictor()}):
        assert not torch.equal(net[0].weight, before["0.weight"])
        assert not torch.equal(net[0].weight, point)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_spoiled_step_leaves_weights_alone_and_forecasts_finite(name):
    for k, (net, before, _) in enumerate(run(MAKERS[name], spoiled=5)):
        now = dict(net.named_parameters())
        assert all(torch.isfinite(p).all() for p in now.values())
        assert all(torch.equal(p, before[n]) for n, p in now.items()) == (k == 5)


def test_the_forecast_is_as_long_as_so_many_updates():
    for k, (net, before, _) in enumerate(run(MAKERS["sgd"], shadow=True)):
        if k == 1:
            update = (net[0].weight - before["0.weight"]).norm().item()
    changes = {"predictors": {"hidden": SpectralPredictor(magnify=1.0)}}
    horizon = FixedHorizon(updates=3.0)
    for k, (_, before, point) in enumerate(run(MAKERS["sgd"], horizon=horizon, **changes)):
        if k == 2:
            moved = (point - before["0.weight"]).norm().item()
    stretch = 2**0.5  # eight rows, four columns
    assert moved == pytest.approx(3 * stretch * update, rel=1e-4)


@pytest.mark.parametrize("refresh_every", [1, 8])
@pytest.mark.parametrize("magnify", [1.0, 3.0])
def test_forecasts_are_magnified_once_and_as_long_after_a_spoiled_step(magnify, refresh_every):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer, spoiled, moved = SGD(net.parameters(), 1e-3), (4, 5), []
    hidden = SpectralPredictor(magnify=magnify, refresh_every=refresh_every)
    predictors = {"hidden": hidden, "vector": MomentumPredictor()}
    config = HybridConfig(total_steps=30, predictors=predictors, horizon=FixedHorizon(updates=2.0))
    with HybridEngine(net, optimizer, config) as engine:
        for k in range(8):
            before = net[2].weight.detach().clone()
            multipliers = engine.multipliers()
            engine.before_step()
            moved.append((net[2].weight - before).norm().item())
            loss = net(torch.randn(4, 8)).square().mean() * (math.nan if k in spoiled else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
            if k > 2:
                assert set(multipliers) == {"0.weight", "2.weight"}
                wanted = [2 * magnify] * 2
                assert list(multipliers.values()) == pytest.approx(wanted, rel=1e-4)
    assert moved[4] == pytest.approx(moved[5], rel=1e-3) == pytest.approx(moved[6], rel=1e-3)
    assert moved[3] != pytest.approx(moved[4], rel=1e-3)


@pytest.mark.parametrize("make", [AdamW, SGD])
def test_matrices_whose_gradient_comes_and_goes_move_whenever_it_comes(make):
    torch.manual_seed(0)
    trunk, experts, head = nn.Linear(4, 8), [nn.Linear(8, 8), nn.Linear(8, 8)], nn.Linear(8, 2)
    net = nn.ModuleList([trunk, *experts, head])
    optimizer, moves = make(net.parameters(), RATE), [0, 0]
    with HybridEngine(net, optimizer, HybridConfig(speedup=1, total_steps=60)) as engine:
        for k in range(60):
            before = [expert.weight.detach().clone() for expert in experts]
            engine.before_step()
            loss = head(experts[k % 2](trunk(torch.randn(16, 4)).tanh()).tanh()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
            moved = [not torch.equal(x.weight, y) for x, y in zip(experts, before, strict=True)]
            assert not moved[1 - k % 2]
            moves[k % 2] += moved[k % 2]
    assert min(moves) >= 28


@pytest.mark.parametrize("refresh_every", [1, 8])
def test_matrices_move_on_after_an_undone_step(refresh_every):
    predictor = SpectralPredictor(refresh_every=refresh_every)
    changes = {"spoiled": 5, "predictors": {"hidden": predictor}}
    for k, (net, before, _) in enumerate(run(MAKERS["adamw"], **changes)):
        assert torch.equal(net[0].weight, before["0.weight"]) == (k == 5)


def test_an_optimizer_that_maximises_goes_uphill():
    def uphill(parameters):
        return AdamW(parameters, RATE, maximize=True)

    def downhill(parameters):
        return AdamW(parameters, RATE)

    for (net, _, _), (other, _, _) in zip(
        list(run(uphill, sign=-1.0)), list(run(downhill)), strict=True
    ):
        pairs = zip(net.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in pairs)
