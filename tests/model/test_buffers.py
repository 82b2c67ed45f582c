"""Buffers are as before an undone step, whatever happened to them in it."""

import math

import pytest
import torch
from cases import UNGATED
from loops import full_step, normal
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.ledger import Phase

NAN = math.nan
BAD = 20
"""The number of the bad step."""

CONFIG = HybridConfig(
    total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
)


def nothing(model, value, bad):
    """Change nothing."""


class Net(nn.Module):
    """A small network with something beside it that steps change.

    Args:
        setup: Called with the network.
        change: Called in every forward pass with the network, a number of the batch that is not
            finite in a bad step, and whether the step is bad.
    """

    def __init__(self, setup=lambda model: None, change=nothing):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))
        self.steps, self.change = 0, change
        setup(self)

    def forward(self, x, bad=False):
        self.steps += 1
        out = self.net(x)
        self.change(self, out.detach().mean() * (NAN if bad else 1.0), bad)
        return out


class Normed(Net):
    def __init__(self):
        super().__init__(lambda model: model.net.append(nn.BatchNorm1d(2)))

    def forward(self, x, bad=False):
        return super().forward(x * NAN if bad else x)


def share_buffer(model):
    model.register_buffer("count", torch.zeros(2))
    model.net.register_buffer("count", model.count)


def count(model, value, bad):
    model.count.add_(value)


CASES = {
    "is of a norm": lambda: Normed(),
    "is shared": lambda: Net(share_buffer, count),
}
"""What happens to buffers in a step, above all in a bad one."""


def train(model, fused=False):
    """Full steps of which one that verifies predicted steps is bad; what it found and left.

    A good step keeps what its forward pass did beside the weights, corrected or predicted or not.
    """
    before, undone, seen = None, None, {}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, fused=fused)
    engine = HybridEngine(model, optimizer, CONFIG)
    for k in range(22):
        bad = k == BAD
        before = (snapshot(model), structure(model)) if bad else before
        record = full_step(
            engine,
            [optimizer],
            lambda k=k, bad=bad: loss(model, k, bad),
            lambda: seen.update(snapshot(model)),
        )
        undone = (snapshot(model), structure(model)) if bad else undone
        assert record.phase is not Phase.PLAIN
        assert record.predicted or not bad
        now = snapshot(model)
        assert bad or all(same(now[name], tensor) for name, tensor in seen.items() if name in now)
    return engine, before, undone


def loss(model, k, bad=False):
    x = normal(k, 16, 4)
    return model(x, bad).square().mean() * (NAN if bad else 1.0)


def snapshot(model):
    named = model.named_buffers(remove_duplicate=False)
    return {name: tensor.detach().clone() for name, tensor in named}


def same(left, right):
    return torch.equal(left, right)


def structure(model):
    """Which buffers are whose, None included."""
    return {name: sorted(m._buffers) for name, m in model.named_modules()}


@pytest.mark.parametrize("case", CASES)
def test_an_undone_step_leaves_no_trace_beside_the_weights_and_a_good_one_keeps_it(case):
    model = CASES[case]()
    engine, before, undone = train(model, fused=case == "is of a norm")
    assert engine.ledger.undone_steps == 1
    assert undone[1] == before[1]
    assert undone[0].keys() == before[0].keys()
    for name, tensor in before[0].items():
        assert same(undone[0][name], tensor), name
    tensors = [*model.buffers(), *model.parameters()]
    assert all(torch.isfinite(t).all() for t in tensors)
