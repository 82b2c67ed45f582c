"""Every parameter moves by its own group's learning rate, and not at all where that is 0."""

import pytest
import torch
from cases import UNGATED
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

SLOW, FAST = 1e-6, 1e-3
OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def net():
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(16, 1))


def batch(k):
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(k))
    return x, x.prod(1, keepdim=True).tanh()


def trained(model, optimizer, steps, plugged=True, rates=None, config=None):
    """Paths of the weights: how far each parameter went in each full step, and between them."""
    engine = None
    if plugged:
        engine = HybridEngine(
            model, optimizer, config or HybridConfig(total_steps=3 * steps // 2, predictors=UNGATED)
        )
    inside, between = [], []
    for k in range(steps):
        for group, rate in zip(optimizer.param_groups, rates(k) if rates else (), strict=False):
            group["lr"] = rate
        start = [p.detach().clone() for p in model.parameters()]
        if engine:
            engine.before_step()
        opened = [p.detach().clone() for p in model.parameters()]
        x, y = batch(k)
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if engine:
            engine.after_step()
        ends = [p.detach() for p in model.parameters()]
        between.append([(b - a).norm().item() for a, b in zip(start, opened, strict=True)])
        inside.append([(b - a).norm().item() for a, b in zip(opened, ends, strict=True)])
    return inside, between


def two_rates(model, make):
    """A backbone that is fine-tuned beside a new head."""
    slow, fast = list(model[0].parameters()), list(model[2:].parameters())
    return make([{"params": slow, "lr": SLOW}, {"params": fast, "lr": FAST}], lr=FAST)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_backbone_at_a_small_rate_moves_as_far_as_in_plain_training(name):
    paths, ends = [], []
    for plugged in (False, True):
        model = net()
        start = model[0].weight.detach().clone()
        inside, between = trained(model, two_rates(model, OPTIMIZERS[name]), 60, plugged)
        paths.append(sum(step[0] for step in (*inside, *between)))
        ends.append((model[0].weight - start).norm().item())
    assert paths[1] < 2 * paths[0]
    assert ends[1] < 2 * ends[0]


@pytest.mark.parametrize("rates", [(FAST, FAST), (SLOW, FAST)], ids=["alike", "different"])
def test_the_bound_is_one_where_hidden_matrices_have_different_rates(rates):
    """At a rate so small the update would be made twice as long as the optimizer's."""
    model = net()
    slow, fast = list(model[0].parameters()), list(model[2:].parameters())
    groups = [{"params": slow, "lr": rates[0]}, {"params": fast, "lr": rates[1]}]
    optimizer = torch.optim.SGD(groups, lr=FAST)
    norms = []
    model[2].weight.register_hook(lambda gradient: norms.append(gradient.norm().item()))
    inside, _ = trained(model, optimizer, 20, config=HybridConfig(total_steps=40, speedup=1))
    place = [name for name, _ in model.named_parameters()].index("2.weight")
    for step, norm in zip(inside, norms, strict=True):
        ratio = step[place] / (rates[1] * norm)
        assert ratio == pytest.approx(2.0 if rates[0] == rates[1] else 1.0, rel=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_nothing_moves_once_the_rate_is_zero(name, as_tensor):
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters(), lr=FAST)

    def rates(k):
        rate = FAST if k < 15 else 0.0
        return [torch.tensor(rate) if as_tensor and name != "sgd" else rate]

    inside, between = trained(model, optimizer, 30, rates=rates)
    assert min(min(step) for step in inside[:15]) > 0
    assert any(max(step) > 0 for step in between[:15])
    assert max(max(step) for step in (*inside[15:], *between[15:])) == 0


def test_the_drift_survives_a_rate_of_zero():
    """Steps at rate 0 tell nothing of the drift's unit; they move nothing and break nothing."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=FAST)
    inside, between = trained(model, optimizer, 40, rates=lambda k: [0.0 if 15 <= k < 20 else FAST])
    assert all(torch.isfinite(p).all() for p in model.parameters())
    late = [max(step) for step in between[20:] if max(step) > 0]
    assert late
    assert max(late) < max(max(step) for step in inside[20:])
