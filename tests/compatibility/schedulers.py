"""Rows: every learning-rate scheduler that torch ships."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning_models import loader
from torch.optim import Optimizer, lr_scheduler, swa_utils

from compatibility.rows import CHECKS, row
from compatibility.subject import EPOCHS, Subject, same_rates, sgd, train


def sequential(optimizer: Optimizer, steps: int) -> Any:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        lr_scheduler.CosineAnnealingLR(optimizer, steps - 5),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[5])


def chained(optimizer: Optimizer, steps: int) -> Any:
    parts = [
        lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=5),
        lr_scheduler.ExponentialLR(optimizer, 0.9),
    ]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


SCHEDULERS: dict[str, Callable[[Optimizer, int], Any]] = {
    "LambdaLR": lambda o, n: lr_scheduler.LambdaLR(o, lambda t: 1.0 / (1 + t)),
    "MultiplicativeLR": lambda o, n: lr_scheduler.MultiplicativeLR(o, lambda t: 0.95),
    "StepLR": lambda o, n: lr_scheduler.StepLR(o, 7, gamma=0.5),
    "MultiStepLR": lambda o, n: lr_scheduler.MultiStepLR(o, [5, 20]),
    "ConstantLR": lambda o, n: lr_scheduler.ConstantLR(o, 0.1, total_iters=9),
    "LinearLR": lambda o, n: lr_scheduler.LinearLR(o, 0.1, total_iters=20),
    "ExponentialLR": lambda o, n: lr_scheduler.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o, n: lr_scheduler.PolynomialLR(o, n, power=2.0),
    "CosineAnnealingLR": lambda o, n: lr_scheduler.CosineAnnealingLR(o, n),
    "CosineAnnealingWarmRestarts": lambda o, n: lr_scheduler.CosineAnnealingWarmRestarts(o, 10),
    "ChainedScheduler": chained,
    "SequentialLR": sequential,
    "CyclicLR": lambda o, n: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=6),
    "OneCycleLR": lambda o, n: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=n),
    "SWALR": lambda o, n: swa_utils.SWALR(o, 1e-3, anneal_epochs=12),
}


def follows(make: Callable[[Optimizer, int], Any], cycles: bool, folder: Path) -> None:
    """Check the rate, and the momentum if the scheduler changes it too."""

    def subject() -> Subject:
        return Subject(optimizer=sgd, scheduler=make)

    run = train(subject()).sound()
    assert same_rates(subject, run)
    assert cycles == (len(set(run.model.momenta.values())) > 1)
    run = train(subject(), **EPOCHS).sound()
    assert same_rates(subject, run, **EPOCHS)


for _name, _make in SCHEDULERS.items():
    CHECKS[f"`{_name}`"] = partial(follows, _make, _name in ("CyclicLR", "OneCycleLR"))


@row("`ReduceLROnPlateau`")
def plateau(folder: Path) -> None:
    def subject() -> Subject:
        return Subject(
            scheduler=lambda o, n: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=9.0),
            interval="epoch",
        )

    run = train(subject(), **EPOCHS).sound()
    assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 6
    assert len(set(run.model.rates.values())) > 1


@row('any of them with interval `"epoch"`')
def by_epoch(folder: Path) -> None:
    def subject() -> Subject:
        return Subject(scheduler=lambda o, n: lr_scheduler.StepLR(o, 2), interval="epoch")

    run = train(subject(), **EPOCHS).sound()
    assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 6


@row("any of them with a frequency")
def with_frequency(folder: Path) -> None:
    subject = Subject(scheduler=lambda o, n: lr_scheduler.StepLR(o, 4), frequency=3)
    run = train(subject, train=loader(40)).sound()
    assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 12
