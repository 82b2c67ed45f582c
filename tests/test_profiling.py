"""Operations are counted like torch counts them, also where a loss differentiates inside."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict import SavingsLedger
from hybrid_predict.profiling import FlopProfile, traffic
from hybrid_predict.tasks import TASKS


def counted(name: str, reference: bool) -> int | None:
    task = TASKS[name].tiny()
    model, batch = task.model(0), next(task.batches(0))
    if reference:
        with FlopCounterMode(display=False) as mode:
            task.loss(model, batch).backward()
        return mode.get_total_flops()
    profile = FlopProfile(SavingsLedger())
    profile.start(model)
    task.loss(model, batch).backward()
    return profile.stop()


@pytest.mark.parametrize("name", ["gpt-0.2m", "cnn"])
def test_the_count_is_torch_s_own(name: str) -> None:
    found = counted(name, reference=False)
    assert found
    assert found == counted(name, reference=True)


def test_a_loss_that_differentiates_inside_is_counted_too() -> None:
    assert counted("pinn", reference=False)


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
