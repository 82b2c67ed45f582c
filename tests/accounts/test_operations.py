"""Operations are counted like torch counts them, also where a loss differentiates inside."""

import logging

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tasks import TASKS
from hybrid_predict import SavingsLedger
from hybrid_predict.accounts.operations import OperationCounter, traffic


def counted(name: str, *, reference: bool) -> int | None:
    """Operations of one forward and backward pass, as torch counts them or as we do."""
    task = TASKS[name].tiny()
    model, batch = task.model(0), next(task.batches(0))
    if reference:
        with FlopCounterMode(display=False) as mode:
            task.loss(model, batch).backward()
        return mode.get_total_flops()
    counter = OperationCounter(ledger := SavingsLedger(), 1.0)
    counter.start(model)
    task.loss(model, batch).backward()
    counter.end_step(1)
    return ledger.flops_per_step


@pytest.mark.parametrize("name", ["gpt-0.2m", "cnn"])
def test_the_count_is_torch_s_own(name: str) -> None:
    found = counted(name, reference=False)
    assert found
    assert found == counted(name, reference=True)


def test_a_loss_that_differentiates_inside_is_counted_too() -> None:
    assert counted("pinn", reference=False)


@pytest.mark.parametrize(("limit", "warned"), [(0.4, True), (0.6, False)])
def test_corrections_are_counted_apart_and_told_beyond_the_limit(limit, warned, caplog) -> None:
    square, net = torch.ones(8, 8), torch.nn.Linear(8, 8)
    counter = OperationCounter(ledger := SavingsLedger(), limit)
    counter.start(net)
    square @ square @ square
    with counter.correcting():
        square @ square
    with caplog.at_level(logging.WARNING):
        counter.end_step(1)
    assert (ledger.flops_per_step, ledger.flops_per_correction) == (2 * 2 * 8**3, 2 * 8**3)
    assert bool(ledger.events) is warned
    assert ("max_overhead" in caplog.text) is warned


@pytest.mark.parametrize("compiled", [False, True])
def test_one_full_step_is_counted_however_little_came_of_it(compiled: bool) -> None:
    net = torch.nn.Linear(8, 8)
    if compiled:
        net._orig_mod = net.weight  # what marks compiled modules
    counter = OperationCounter(SavingsLedger(), 1.0)
    started = []
    for step in (1, 2):
        counter.start(net)
        started.append(counter.counting)
        counter.end_step(step)
    assert started == [not compiled, False]


X, Y = torch.ones(10, 10), torch.ones(10, 10)

TRAFFIC = {
    "a sum": (lambda: X + Y, 0, 3),
    "a sum in place": (lambda: X.add_(Y, alpha=2.0), 0, 3),
    "a sum into a buffer": (lambda: torch.add(X, Y, out=Y), 0, 3),
    "a copy": (lambda: X.copy_(Y), 0, 2),
    "a list of copies": (lambda: torch._foreach_copy_([X, Y], [Y, X]), 0, 4),
    "a clone": (lambda: X.clone(), 0, 2),
    "zeros": (lambda: torch.zeros_like(X), 0, 1),
    "an allocation": (lambda: torch.empty_like(X), 0, 0),
    "views": (lambda: X.view(100)[5:].detach(), 0, 0),
    "a half": (lambda: X.bfloat16(), 0, 1.5),
    "a product": (lambda: X @ Y, 3, 0),
    "a product with a sum": (lambda: torch.addmm(X, X, Y), 4, 0),
}
"""What an operation reads and writes, in matrices of 400 bytes."""


@pytest.mark.parametrize("name", TRAFFIC)
def test_traffic_is_what_an_operation_reads_and_writes(name: str) -> None:
    run, products, others = TRAFFIC[name]
    assert traffic(run) == {"products": 400 * products, "others": 400 * others}
