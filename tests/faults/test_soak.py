"""Thousands of full steps with random faults: nothing drifts, nothing piles up."""

import gc
import random
import threading
from pathlib import Path

import pytest
import torch
from loops import NAN, make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridEngine, Verdict

FAULTS = ("left", "accumulate", "reload", "save")
"""What happens in every fifth full step."""

SPOILED = 520
"""One full step in so many ends in an alarm; those that are further apart are forgiven."""


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
        self.config = make_config(total_steps=4 * steps, warmup_steps=8)
        self.engine = HybridEngine(self.model, self.optimizer, self.config)
        self.taken = self.undone = self.alarms = self.ticks = 0

    def loss(self, factor=1.0):
        x = torch.randn(8, 4)
        noise = 0.3 * torch.randn(8, 1)
        return (self.model(x) - self.target(x) - noise).square().mean() * factor

    def step(self):
        fault = self.draw.choice(FAULTS) if self.draw.randrange(5) == 0 else ""
        if fault == "reload":
            self.reload()
        before = weights(self.model)
        self.engine.before_step()
        moved = not same_bits(weights(self.model), before)
        if fault == "left":
            self.loss().backward()
            self.optimizer.zero_grad()
            self.engine.abandon()
            self.undone += moved
            assert same_bits(weights(self.model), before)
            return
        saved = moved and fault == "save"
        if fault == "save":  # undoes the predicted steps
            self.engine.state_dict()
            self.undone += moved
        if fault == "accumulate":
            (self.loss() / 2).backward()
        spoils = moved and not saved and self.taken > (self.alarms + 1) * SPOILED
        skips = spoils and self.alarms % 2 == 0
        self.alarms += spoils
        self.undone += spoils
        loss = self.loss(NAN if spoils else 1.0)
        loss.backward()
        if not skips:
            self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step(loss)
        self.ticks += record.ticks
        self.taken += 1
        assert record.predicted == moved
        assert record.verdict is not Verdict.UNDONE or record.ticks == 1
        if spoils:
            assert same_bits(weights(self.model), before)

    def reload(self):
        """Go on in a fresh engine, which has none of the copies that the first one has made."""
        state = self.engine.state_dict()
        self.engine.detach()
        self.engine = HybridEngine(self.model, self.optimizer, self.config)
        self.engine.load_state_dict(state)


@pytest.mark.parametrize("steps", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_faults_leave_nothing_behind(steps):
    run = Run(steps)
    for _ in range(steps // 5):
        run.step()
    run.reload()
    first = (tensors(), threading.active_count())
    memory = resident()
    for _ in range(steps - steps // 5):
        run.step()
    run.reload()
    assert (tensors(), threading.active_count()) == first
    assert resident() - memory < 16 * 2**20
    assert len(run.optimizer._optimizer_step_pre_hooks) == 1
    assert len(run.optimizer._optimizer_step_post_hooks) == 1
    ledger = run.engine.ledger
    assert not run.engine._state.plain
    assert run.alarms >= max(1, steps // (2 * SPOILED))
    assert ledger.full_steps == run.taken
    assert ledger.steps == ledger.full_steps + ledger.predicted_steps == run.ticks
    assert run.undone == ledger.undone_steps
    assert ledger.predicted_steps > 0.7 * run.taken
    assert len(ledger.events) < 6
    assert run.loss().item() < 0.5
    run.engine.detach()
    assert not run.optimizer._optimizer_step_pre_hooks
