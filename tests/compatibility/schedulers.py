"""Rows: every learning-rate scheduler that torch ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning_models import loader
from torch.optim import SGD, Optimizer, lr_scheduler, swa_utils

from compatibility.rows import row, rows
from compatibility.subject import EPOCHS, Subject, follows, train


def first_steps(optimizer: Optimizer) -> Any:
    return lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=5)


SCHEDULERS: dict[str, Callable[[Optimizer, int], Any]] = {
    "LambdaLR": lambda o, n: lr_scheduler.LambdaLR(o, lambda t: 1.0 / (1 + t)),
    "MultiplicativeLR": lambda o, n: lr_scheduler.MultiplicativeLR(o, lambda t: 0.95),
    "StepLR": lambda o, n: lr_scheduler.StepLR(o, 7, gamma=0.5),
    "MultiStepLR": lambda o, n: lr_scheduler.MultiStepLR(o, [5, 20]),
    "ConstantLR": lambda o, n: first_steps(o),
    "LinearLR": lambda o, n: lr_scheduler.LinearLR(o, 0.1, total_iters=20),
    "ExponentialLR": lambda o, n: lr_scheduler.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o, n: lr_scheduler.PolynomialLR(o, n, power=2.0),
    "CosineAnnealingLR": lambda o, n: lr_scheduler.CosineAnnealingLR(o, n),
    "CosineAnnealingWarmRestarts": lambda o, n: lr_scheduler.CosineAnnealingWarmRestarts(o, 10),
    "ChainedScheduler": lambda o, n: lr_scheduler.ChainedScheduler(
        [first_steps(o), lr_scheduler.ExponentialLR(o, 0.9)], o
    ),
    "SequentialLR": lambda o, n: lr_scheduler.SequentialLR(
        o, [first_steps(o), lr_scheduler.CosineAnnealingLR(o, n - 5)], milestones=[5]
    ),
    "CyclicLR": lambda o, n: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=6),
    "OneCycleLR": lambda o, n: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=n),
    "SWALR": lambda o, n: swa_utils.SWALR(o, 1e-3, anneal_epochs=12),
}


@rows(
    {f"`{name}`": (make, name in ("CyclicLR", "OneCycleLR")) for name, make in SCHEDULERS.items()}
)
def by_step(make: Callable[[Optimizer, int], Any], cycles: bool, folder: Path) -> None:
    """Check the rate, and the momentum if the scheduler changes it too."""
    subject = partial(Subject, None, partial(SGD, lr=1e-2, momentum=0.9), make)
    run = follows(subject)
    assert cycles == (len(set(run.model.momenta.values())) > 1)


def plateaus(optimizer: Optimizer, steps: int) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9.0)


@row("`ReduceLROnPlateau`", plateaus)
@row('any of them with interval `"epoch"`', lambda o, n: lr_scheduler.StepLR(o, 2))
def by_epoch(make: Callable[[Optimizer, int], Any], folder: Path) -> None:
    run = train(Subject(scheduler=make, interval="epoch"), **EPOCHS).sound()
    assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 6
    assert len(set(run.model.rates.values())) > 1


@row("any of them with a frequency")
def with_frequency(folder: Path) -> None:
    subject = Subject(scheduler=lambda o, n: lr_scheduler.StepLR(o, 4), frequency=3)
    run = train(subject, train=loader(40)).sound()
    assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 12
