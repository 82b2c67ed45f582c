"""Operations are counted like torch counts them, also where a loss differentiates inside."""

import pytest
import torch
import torch._dynamo
from loops import full_step
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tasks import TASKS
from hybrid_predict import HybridConfig, HybridEngine


def counted(net, loss, **changes):
    """The ledger after one full step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    config = HybridConfig(**{"total_steps": 9, "speedup": 1, "max_overhead": 1e9, **changes})
    with HybridEngine(net, optimizer, config) as engine:
        full_step(engine, [optimizer], loss)
    return engine.ledger


def test_the_count_is_torch_s_own_and_corrections_are_counted_apart():
    task = TASKS["gpt-0.2m"].tiny()
    model, batch = task.model(0), next(task.batches(0))
    with FlopCounterMode(display=False) as mode:
        task.loss(model, batch).backward()
    ledger = counted(model, lambda: task.loss(model, batch))
    assert ledger.flops_per_step == mode.get_total_flops() > 0
    assert ledger.flops_per_correction > 0


@pytest.fixture
def compiler():
    """A backend that runs what it is given as it is, and notes every run in ``runs``."""
    torch._dynamo.reset()

    def backend(graph, _):
        def run(*args):
            backend.runs += 1
            return graph(*args)

        return run

    backend.runs = 0
    yield backend
    torch._dynamo.reset()


class Net(torch.nn.Module):
    """A layer; torch leaves its own modules as they are when they are compiled alone."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def test_what_is_compiled_runs_compiled_in_every_step(compiler):
    net = Net()
    net.compile(backend=compiler)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    engine = HybridEngine(net, optimizer, HybridConfig(total_steps=9))
    for step in (1, 2, 3):
        full_step(engine, [optimizer], lambda: net(torch.ones(2, 8)).sum())
        assert compiler.runs == step


def test_a_formula_that_raises_ends_only_the_count(monkeypatch):
    def broken(*_, **__):
        raise AssertionError("a shape that it does not know")

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, broken)
    net = torch.nn.Linear(8, 8)
    ledger = counted(net, lambda: net(torch.ones(2, 8)).sum())
    assert ledger.flops_per_step is None and ledger.full_steps == 1
