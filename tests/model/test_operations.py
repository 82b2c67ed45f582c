"""Operations are counted like torch counts them, also where a loss differentiates inside."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tasks import TASKS
from hybrid_predict import SavingsLedger
from hybrid_predict.torch.cost import OperationCounter


def counted(name: str, *, reference: bool) -> int | None:
    """Operations of one forward and backward pass, as torch counts them or as we do."""
    task = TASKS[name].tiny()
    model, batch = task.model(0), next(task.batches(0))
    if reference:
        with FlopCounterMode(display=False) as mode:
            task.loss(model, batch).backward()
        return mode.get_total_flops()
    counter = OperationCounter(ledger := SavingsLedger())
    counter.start(model)
    task.loss(model, batch).backward()
    counter.end_step()
    return ledger.flops_per_step


@pytest.mark.parametrize("name", ["gpt-0.2m", "cnn"])
def test_the_count_is_torch_s_own(name: str) -> None:
    found = counted(name, reference=False)
    assert found
    assert found == counted(name, reference=True)


def test_a_loss_that_differentiates_inside_is_counted_too() -> None:
    assert counted("pinn", reference=False)


def test_corrections_are_counted_apart() -> None:
    square, net = torch.ones(8, 8), torch.nn.Linear(8, 8)
    counter = OperationCounter(ledger := SavingsLedger())
    counter.start(net)
    square @ square @ square
    with counter.correcting():
        square @ square
    assert counter.end_step()
    assert (ledger.flops_per_step, ledger.flops_per_correction) == (2 * 2 * 8**3, 2 * 8**3)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers_are_counted_whatever_torch_makes_of_them(kind, batch_first) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    layers = getattr(torch.nn, kind)(8, 16, num_layers=2, batch_first=batch_first)
    counter = OperationCounter(ledger := SavingsLedger())
    counter.start(layers)
    layers(torch.randn(5, 3, 8, requires_grad=True))[0].sum().backward()
    counter.end_step()
    matrices = gates * 16 * (8 + 16 + 16 + 16)
    assert ledger.flops_per_step is not None
    # Products with the first state, which is zero, may be left out, or be made by themselves.
    assert 0.8 <= ledger.flops_per_step / (3 * 2 * 15 * matrices) <= 1.2


@pytest.fixture
def compiler() -> Iterator[Callable[..., Any]]:
    """A backend that runs what it is given as it is, and notes every run in ``runs``."""
    torch._dynamo.reset()

    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            backend.runs += 1
            return graph(*args)

        return run

    backend.runs = 0
    yield backend
    torch._dynamo.reset()


class Net(torch.nn.Module):
    """A layer; torch leaves its own modules as they are when they are compiled alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("how", ["in place", "a function", "a whole graph"])
def test_what_is_compiled_runs_compiled_in_every_step(how, compiler) -> None:
    net = run = Net()
    if how == "in place":
        net.compile(backend=compiler)
    else:
        run = torch.compile(net.forward, backend=compiler, fullgraph=how == "a whole graph")
    counter = OperationCounter(SavingsLedger())
    for step in (1, 2, 3):
        counter.start(net)
        run(torch.ones(2, 8)).sum().backward()
        counter.end_step()
        assert compiler.runs == step


def test_where_torch_would_not_compile_nothing_is_counted(monkeypatch, compiler) -> None:
    """Before torch 2.10."""
    monkeypatch.delattr(TorchDispatchMode, "ignore_compile_internals", raising=False)
    net, started = torch.nn.Linear(8, 8), []
    for compiled in (False, True):
        if compiled:
            torch.compile(net.forward, backend=compiler)
        counter = OperationCounter(SavingsLedger())
        counter.start(net)
        started.append(counter.counting)
        counter.stop()
    assert started == [True, False]


def test_a_formula_that_raises_ends_only_the_count(monkeypatch) -> None:
    def broken(*_: Any, **__: Any) -> int:
        raise AssertionError("a shape that it does not know")

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.addmm, broken)
    counter = OperationCounter(ledger := SavingsLedger())
    counter.start(net := torch.nn.Linear(8, 8))
    net(torch.ones(2, 8)).sum().backward()
    counter.end_step()
    assert (ledger.flops_per_step, ledger.flops_per_correction) == (None, None)


def test_operators_that_take_functions_run_while_others_are_counted() -> None:
    counter = OperationCounter(ledger := SavingsLedger())
    counter.start(torch.nn.Linear(8, 8))
    x = torch.ones(8, 8)
    found = torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x + x, (x,))
    counter.end_step()
    assert found[0, 0] == 8.0
    assert ledger.flops_per_step is None
