"""How much memory an engine holds beside model and optimizer, in buffers over hidden matrices.

Counted are the tensors that can be reached from the engine, at three moments: between full steps,
while a verdict is open, and while the optimizer updates.
"""

import pytest
import torch
from cases import UNGATED
from held import held
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.forecast import forecaster

SIDE, LAYERS = 64, 6
HIDDEN = (LAYERS - 1) * SIDE**2
"""Entries of hidden matrices; the last layer is the head."""

FEW = 4 * (4 * SIDE * LAYERS + 1000)
"""Bytes of row moments, of numbers per tensor, and of what one full step has measured."""


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    """Matrices are small here; samples of them are as small in comparison as those of others."""
    monkeypatch.setattr(forecaster, "SAMPLE", 16)


class Watched(torch.optim.AdamW):
    """Calls ``during`` while it updates."""

    during = staticmethod(lambda: None)

    def step(self, closure=None):
        self.during()
        return super().step(closure)


class Moments:
    """Bytes that an engine holds at each moment of the last full step."""

    def __init__(self, dtype=torch.float32, extra=None, steps=6, **changes):
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS))).to(dtype)
        if extra is not None:
            self.model.register_buffer("extra", extra)
        self.optimizer = Watched(self.model.parameters(), lr=0.01)
        pattern = {} if "speedup" in changes else {"full_steps": 1, "predict_steps": 1}
        settings = {"total_steps": 1000, "warmup_steps": 2, "max_overhead": 100.0, **pattern}
        settings["predictors"] = UNGATED
        config = HybridConfig(**{**settings, **changes})
        self.engine = HybridEngine(self.model, self.optimizer, config)
        self.optimizer.during = lambda: self.note("updating")
        self.found, self.inputs = {}, torch.ones(4, SIDE, dtype=dtype)
        for _ in range(steps):
            self.record = self.step()

    def step(self):
        self.engine.before_step()
        self.note("open")
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step()
        self.note("between")
        return record

    def note(self, moment):
        self.found[moment] = held(self.engine, self.model, self.optimizer)


def check(found, buffers):
    """Compare bytes with buffers of 32 bits over hidden matrices."""
    for moment, count in buffers.items():
        documented = 4 * HIDDEN * count
        assert documented <= found[moment] <= documented + FEW, moment


CASES = {
    # average, drift, and a covariance with its root; a copy of what moved; weights before the
    # update and their new direction
    "float32": ({}, torch.float32, {"between": 3, "open": 4, "updating": 6}),
    # half the history
    "bfloat16 history": (
        {"history_dtype": "bfloat16"}, torch.float32,
        {"between": 1.5, "open": 2.5, "updating": 4.5},
    ),
    # half the copies, and what rounding leaves out, which goes back as well
    "half precision": ({}, torch.bfloat16, {"between": 4, "open": 5.5, "updating": 7}),
    "corrected only": ({"speedup": 1}, torch.float32, {"between": 2, "open": 2, "updating": 4}),
    "shadow": ({"shadow": True}, torch.float32, {"between": 2, "open": 2, "updating": 3}),
}  # fmt: skip
"""Settings, type of the weights, and buffers of 32 bits at each moment."""


@pytest.mark.parametrize("name", CASES)
def test_an_engine_holds_the_documented_buffers(name):
    changes, dtype, buffers = CASES[name]
    moments = Moments(dtype, **changes)
    assert moments.record.predicted == (buffers["open"] > buffers["between"])
    check(moments.found, buffers)


def test_buffers_are_copied_while_a_verdict_is_open():
    check(Moments(extra=torch.zeros(2 * HIDDEN)).found, {"between": 3, "open": 6})
