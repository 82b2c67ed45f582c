"""Thousands of full steps with random faults: nothing drifts, nothing piles up."""

import gc
import random
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from hybrid_predict import FixedHorizon, HybridEngine, Verdict
from loops import NAN, make_config, same_bits, weights

FAULTS = ("nan", "left", "accumulate", "reload", "save")
EVERY = 5
"""One full step in so many has a fault."""


def resident():
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def tensors():
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))


class Run:
    """A tiny regression that faults happen to."""

    def __init__(self, steps):
        self.draw = random.Random(3)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.target = nn.Linear(4, 1).requires_grad_(False)
        self.config = make_config(
            total_steps=4 * steps, warmup_fraction=0.001, speedup=1.2, patience=10**6,
            horizon=FixedHorizon(updates=1.0), lag=2,
        )  # fmt: skip
        self.engine = HybridEngine(self.model, self.optimizer, self.config)
        self.taken = self.rejected = 0

    def loss(self, factor=1.0):
        x = torch.randn(8, 4)
        noise = 0.3 * torch.randn(8, 1)
        return (self.model(x) - self.target(x) - noise).square().mean() * factor

    def step(self):
        fault = self.draw.choice(FAULTS) if self.draw.randrange(EVERY) == 0 else ""
        # The monitor forgives a spike after a long calm; more of them would end forecasting.
        fault = "spike" if self.taken % 900 == 600 else fault
        if fault == "reload":
            self.reload()
        before = weights(self.model)
        self.engine.before_step()
        if fault == "left":
            self.loss().backward()
            self.optimizer.zero_grad()
            self.engine.abandon()
            assert same_bits(weights(self.model), before)
            return
        moved = self.engine.mapper.displaced
        if fault == "save":
            assert same_bits(dict(self.model.state_dict()), before)
        if fault == "accumulate":
            (self.loss() / 2).backward()
        factor = {"nan": NAN, "spike": 50.0}.get(fault, 1.0) if moved else 1.0
        loss = self.loss(factor)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step(loss)
        self.taken += 1
        self.rejected += record.verdict is Verdict.REJECTED
        if fault == "nan" and moved:
            assert same_bits(weights(self.model), before)

    def reload(self):
        """Go on in a fresh engine, which has none of the copies that the first forecast makes."""
        state = self.engine.state_dict()
        self.engine.detach()
        self.engine = HybridEngine(self.model, self.optimizer, self.config)
        self.engine.load_state_dict(state)

    def steps(self, count):
        for _ in range(count):
            self.step()


@pytest.mark.parametrize("steps", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_faults_leave_nothing_behind(steps):
    run = Run(steps)
    run.steps(steps // 5)
    run.reload()
    first = (tensors(), threading.active_count())
    memory = resident()
    run.steps(steps - steps // 5)
    run.reload()
    # Only the queue of late readings may be longer or shorter.
    assert abs(tensors() - first[0]) <= 4
    assert threading.active_count() == first[1]
    assert resident() - memory < 16 * 2**20
    assert len(run.optimizer._optimizer_step_pre_hooks) == 1
    assert len(run.optimizer._optimizer_step_post_hooks) == 1
    assert len(run.model._state_dict_hooks) == 1
    ledger = run.engine.ledger
    assert run.rejected > steps // 200
    assert not run.engine.clock.handed_over
    assert sum("put back" in event["reason"] for event in ledger.events) == 1
    assert ledger.full_steps == run.taken
    read = ledger.accepted + ledger.shrunk + ledger.rejected
    assert 0 <= ledger.forecasts - read <= 2
    assert len(ledger.events) < 12
    assert run.loss().item() < 0.5
    run.engine.detach()
    assert not run.optimizer._optimizer_step_pre_hooks
