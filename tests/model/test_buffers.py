"""Buffers are as before an undone step, and as its forward pass left them after a good one."""

import pytest
import torch
from cases import UNGATED
from loops import NAN, full_step, normal, same_bits
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.ledger import Phase

BAD = 20
"""The number of the bad step, which verifies a predicted one."""

CONFIG = HybridConfig(
    total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
)


class Counting(nn.Module):
    """Two modules share a buffer, to which every forward pass adds."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("count", torch.zeros(2))
        self.net.register_buffer("count", self.count)

    def forward(self, x):
        out = self.net(x)
        self.count.add_(out.detach().mean())
        return out


def normed(net):
    return nn.Sequential(net, nn.BatchNorm1d(2))


def buffers(model):
    """Copies of the buffers, by every name."""
    named = model.named_buffers(remove_duplicate=False)
    return {name: tensor.detach().clone() for name, tensor in named}


@pytest.mark.parametrize(("make", "fused"), [(normed, True), (Counting, False)])
def test_an_undone_step_leaves_no_trace_beside_the_weights_and_a_good_one_keeps_it(make, fused):
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2)
    model = make(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    engine = HybridEngine(model, optimizer, CONFIG)
    seen = {}
    for k in range(BAD + 2):
        x = normal(k, 16, 4) * (NAN if k == BAD else 1.0)
        before = buffers(model)
        record = full_step(
            engine,
            [optimizer],
            lambda x=x: model(x).square().mean(),
            lambda: seen.update(buffers(model)),
        )
        assert record.phase is not Phase.PLAIN
        assert not same_bits(seen, before)
        assert same_bits(buffers(model), before if k == BAD else seen)
        assert record.predicted or k != BAD
    assert engine.ledger.undone_steps == 1
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())
