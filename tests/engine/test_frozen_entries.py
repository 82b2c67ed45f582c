"""Entries that a gradient hook freezes on the way stand still, in full and in predicted steps."""

import pytest
import torch
from cases import UNGATED
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

ROWS = (torch.arange(24) < 12).float()[:, None].expand(24, 24)
ENTRIES = (torch.arange(24 * 24).reshape(24, 24) % 3 > 0).float()
MASKS = {"rows": ROWS, "columns": ROWS.T, "entries": ENTRIES}

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.02),
    "sgd, decay": lambda ps: torch.optim.SGD(ps, lr=0.02, weight_decay=0.1),
    "sgd, one by one": lambda ps: torch.optim.SGD(ps, lr=0.02, weight_decay=0.1, foreach=False),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3),
    "adamw, no momentum": lambda ps: torch.optim.AdamW(ps, lr=3e-3, betas=(0.0, 0.99)),
}


class Run:
    """A small run; ``frozen`` masks the gradient of its hidden matrix while it is set."""

    def __init__(self, make, dtype=torch.float32, **changes):
        torch.manual_seed(0)
        layers = nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 8)
        self.model = nn.Sequential(*layers).to(dtype)
        self.weight, self.dtype, self.frozen = self.model[2].weight, dtype, None
        self.weight.register_hook(lambda g: g if self.frozen is None else g * self.frozen)
        self.optimizer = make(self.model.parameters())
        config = HybridConfig(**{"total_steps": 90, "predictors": UNGATED, **changes})
        self.engine = HybridEngine(self.model, self.optimizer, config)
        self.seen = []

    def step(self):
        self.engine.before_step()
        self.seen.append(self.weight.detach().clone())
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(len(self.seen)))
        loss = (self.model(x.to(self.dtype)) - x.to(self.dtype)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step(loss)
        self.seen.append(self.weight.detach().clone())
        return record

    def steps(self, count):
        return [self.step() for _ in range(count)]


def shrunk(weight, group, steps):
    """Weights after as many updates with a gradient of zero."""
    for _ in range(steps):
        decay = group["weight_decay"]
        if "betas" in group:
            weight = weight * (1 - group["lr"] * decay)
        else:
            weight = weight - group["lr"] * decay * weight
    return weight


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_entries_frozen_on_the_way_move_by_nothing_but_weight_decay(name, mask):
    run, still = Run(OPTIMIZERS[name]), MASKS[mask] == 0
    run.steps(24)
    run.frozen = MASKS[mask]
    run.step()
    before = run.weight.detach().clone()
    taken = run.steps(20)
    assert sum(record.predicted for record in taken) > 3
    expected = shrunk(before, run.optimizer.param_groups[0], 20)
    atol = 1e-6 if run.optimizer.param_groups[0]["weight_decay"] else 0.0
    assert torch.allclose(run.weight[still], expected[still], rtol=0, atol=atol)
    assert ((run.weight - before)[~still] != 0).float().mean() > 0.9
    for opened, closed in zip(run.seen[-40::2], run.seen[-41::2], strict=False):
        assert torch.equal(opened[still], closed[still])  # predicted steps
    run.frozen = None
    run.steps(3)
    assert ((run.weight - expected)[still].abs() > 1e-6).float().mean() > 0.9


def test_entries_in_16_bits_stand_still_only_without_a_gradient():
    """Most updates are rounded away in 16 bits, and corrected updates all the same made."""
    run = Run(lambda ps: torch.optim.SGD(ps, lr=1e-3), torch.bfloat16)
    run.steps(24)
    group = run.engine._state.groups[0]
    carry = dict(zip(group.names, group.memory.carry, strict=True))["2.weight"]
    run.frozen = ROWS.to(torch.bfloat16)
    run.step()
    before, rounded = run.weight.detach().clone(), carry.clone()
    run.steps(10)
    assert torch.equal(run.weight[12:], before[12:])
    assert (carry - rounded)[12:].abs().max() == 0
    assert ((carry - rounded)[:12] != 0).float().mean() > 0.9


def test_a_frozen_entry_resumes_frozen_bit_for_bit():
    runs = []
    for stop in (None, 30):
        run = Run(OPTIMIZERS["sgd"])
        run.steps(24)
        run.frozen = ROWS
        run.steps(6)
        if stop:
            state, weights = run.engine.state_dict(), run.model.state_dict()
            again = Run(OPTIMIZERS["sgd"])
            again.model.load_state_dict(weights)
            again.engine.load_state_dict(state)
            again.frozen, again.seen = ROWS, run.seen
            run = again
        run.steps(12)
        runs.append(run)
    assert all(torch.equal(p, q) for p, q in zip(runs[0].seen, runs[1].seen, strict=True))


def test_a_row_without_gradient_in_one_batch_goes_on_by_the_momentum_of_its_optimizer():
    run = Run(lambda ps: torch.optim.AdamW(ps, lr=3e-3))
    run.steps(10)
    run.frozen = ROWS
    run.step()
    opened, closed = run.seen[-2:]
    assert ((closed - opened)[12:] != 0).float().mean() > 0.9
