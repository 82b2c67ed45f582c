"""Entries that a gradient hook freezes on the way stand still, in full and in predicted steps."""

import pytest
import torch
from cases import UNGATED
from loops import Run, net, normal

from hybrid_predict import HybridConfig

COLUMNS = (torch.arange(24) < 12).float().expand(24, 24)
ENTRIES = (torch.arange(24 * 24).reshape(24, 24) % 3 > 0).float()


def sgd(ps):
    return torch.optim.SGD(ps, lr=0.02, weight_decay=0.1, foreach=False)


def without_momentum(ps):
    return torch.optim.AdamW(ps, lr=3e-3, betas=(0.0, 0.99))


def run_of(make):
    """A small run; ``frozen`` masks the gradient of its hidden matrix while it is set."""
    model = net(8, 24, 24, 8)

    def loss(model, k):
        x = normal(k, 32, 8)
        return (model(x) - x).square().mean()

    config = HybridConfig(total_steps=90, predictors=UNGATED)
    run = Run(model, make(model.parameters()), config, loss)
    run.weight, run.frozen = model[2].weight, None
    run.weight.register_hook(lambda g: g if run.frozen is None else g * run.frozen)
    return run


@pytest.mark.parametrize(("make", "mask"), [(sgd, COLUMNS), (without_momentum, ENTRIES)])
def test_entries_frozen_on_the_way_move_by_nothing_but_weight_decay(make, mask):
    run, still = run_of(make).train(24), mask == 0
    run.frozen = mask
    run.step()
    before, group = run.weight.detach().clone(), run.optimizer.param_groups[0]
    run.train(20)
    assert sum(record.predicted for record in run.records[-20:]) > 3
    expected = before * (1 - group["lr"] * group["weight_decay"]) ** 20
    atol = 1e-6 if group["weight_decay"] else 0.0
    assert torch.allclose(run.weight[still], expected[still], rtol=0, atol=atol)
    assert ((run.weight - before)[~still] != 0).float().mean() > 0.9
    assert not any(moved["2.weight"][still].any() for moved in run.between[-20:])
    run.frozen = None
    run.train(3)
    assert ((run.weight - expected)[still].abs() > 1e-6).float().mean() > 0.9
