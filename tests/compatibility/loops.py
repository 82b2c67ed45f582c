"""Rows: how long, how often and on what the Trainer trains."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from lightning_models import Net, Recorded, Ungated, fit, loader
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from witness import verifies

from compatibility.rows import row, rows
from compatibility.subject import EPOCHS, STEPS, Subject, cosine, follows, refused, train

WITH_ARGUMENTS: dict[str, dict[str, Any]] = {
    "`max_steps`": {"max_steps": 36},
    "`max_epochs`": EPOCHS,
    "`max_steps` and `max_epochs`": {**EPOCHS, "max_steps": 30, "steps": 30},
    "`max_time` beside another limit": {"max_steps": 36, "max_time": "00:01:00:00"},
    "`accumulate_grad_batches`": {
        "max_epochs": 9, "limit_train_batches": 10, "accumulate_grad_batches": 3,
    },
    "`overfit_batches`": {"max_epochs": 6, "overfit_batches": 6},
    "`limit_train_batches`": {"max_epochs": 6, "limit_train_batches": 6},
    "`limit_val_batches`": {**EPOCHS, "limit_val_batches": 0},
    "`val_check_interval` in batches": {"val_check_interval": 5, "check_val_every_n_epoch": None},
    "`check_val_every_n_epoch`": {**EPOCHS, "check_val_every_n_epoch": 2},
    "`reload_dataloaders_every_n_epochs`": {**EPOCHS, "reload_dataloaders_every_n_epochs": 2},
    "`detect_anomaly`": {"detect_anomaly": True},
    "`deterministic`": {"deterministic": "warn"},
}  # fmt: skip


@rows({name: [kwargs] for name, kwargs in WITH_ARGUMENTS.items()})
def with_arguments(kwargs: dict[str, Any], folder: Path) -> None:
    follows(default_root_dir=folder, **kwargs)


@row("`gradient_clip_val`, by norm", "norm", 0.1, lambda n: 0.1)
@row("`gradient_clip_val`, by value", "value", 0.01, lambda n: 0.01 * n**0.5)
def clipped(algorithm: str, value: float, bound: Callable[[int], float], folder: Path) -> None:
    run = follows(gradient_clip_val=value, gradient_clip_algorithm=algorithm)
    norms = [float(r.gradients.total_norm) for r in run.plugin.records if r.gradients]
    most = bound(sum(p.numel() for p in run.model.parameters()))
    assert len(norms) == 24
    assert all(0 < norm <= most * 1.01 for norm in norms)


@row('`max_epochs`, `HybridPredict(skip_data="none")`')
def keeps_batches(folder: Path) -> None:
    def make() -> Subject:
        return Subject(scheduler=lambda o, n: OneCycleLR(o, 1e-2, total_steps=n))

    run = follows(make, plugin=Recorded(skip_data="none"), **EPOCHS)
    assert run.trainer.current_epoch == 4


class Silent(Net):
    def log(self, *args: Any, **kwargs: Any) -> None:
        pass


@row("`barebones`")
def barebones(folder: Path) -> None:
    follows(Silent, barebones=True, log_every_n_steps=0)


@row("`val_check_interval` as a share")
def validations(folder: Path) -> None:
    # The validations of random data get worse, which would end the predicted steps.
    plugin = Recorded(on_overfit="ignore")
    run = follows(plugin=plugin, val_check_interval=0.5, **EPOCHS)
    assert len(run.witness.seen["validation"]) == 12


refused(
    "`max_time` alone",
    "number of optimizer updates is known.*max_steps",
    max_epochs=-1,
    max_time="00:00:10:00",
)


@row("`fast_dev_run`")
def fast_dev_run(folder: Path) -> None:
    run = train(max_steps=-1, fast_dev_run=3)
    assert run.trainer.global_step == run.ledger.steps == run.ledger.full_steps == 3
    assert all(run.witness.seen["batch end"])


@row("`GradientAccumulationScheduler`, `max_steps`")
def scheduled_accumulation(folder: Path) -> None:
    run = follows(callbacks=[GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})])
    assert run.model.batches > 24


@row("`GradientAccumulationScheduler`, `max_epochs`")
def scheduled_epochs(folder: Path) -> None:
    plain, _ = fit([GradientAccumulationScheduler({0: 1, 1: 2})], cosine(), **EPOCHS)
    run = train(cosine(), [GradientAccumulationScheduler({0: 1, 1: 2})], **EPOCHS)
    assert run.trainer.global_step == run.ledger.steps == plain.global_step == 21
    assert run.ledger.predicted_steps > 4


@row("`EarlyStopping`")
def early_stopping(folder: Path) -> None:
    run = train(Net("none"), [EarlyStopping("val_loss", patience=2, min_delta=1e9)], **EPOCHS)
    assert run.trainer.current_epoch == 3
    # An epoch may end a step early or late.
    assert abs(run.trainer.global_step - 18) <= 1
    run.sound(run.trainer.global_step, full_steps=run.model.batches)
    assert run.model.batches < 15


@row("`Timer`")
def timer(folder: Path) -> None:
    class Soon(Timer):
        def time_elapsed(self, stage: Any = "train") -> float:
            return float(model.batches)

    model = cosine()
    run = train(model, [Soon(duration=timedelta(seconds=20))], max_steps=90)
    assert model.batches == 20
    run.sound(run.trainer.global_step, full_steps=20)
    assert run.trainer.global_step > 20


@row("`LearningRateMonitor`")
def monitor(folder: Path) -> None:
    lrs = LearningRateMonitor(logging_interval="step")
    run = train(cosine(), [lrs], logger=CSVLogger(folder)).sound()
    (column,) = lrs.lrs.values()
    assert len(column) == 24
    assert column == list(run.model.rates.values())


@row("a logger that raises")
def broken_logger(folder: Path) -> None:
    class Broken(CSVLogger):
        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            if any(name.startswith("hybrid_predict") for name in metrics):
                raise ConnectionError("the server is gone")

    train(Net(), logger=[Broken(folder, "broken"), CSVLogger(folder, "sound")]).sound()


class Tuned(Net):
    """Has the attributes that the finders set."""

    def __init__(self) -> None:
        super().__init__("cosine")
        self.lr, self.batch_size = 1e-2, 4
        self.data = torch.randn(96, 8, generator=torch.Generator().manual_seed(3))

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.data), self.batch_size)

    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        made["optimizer"].param_groups[0]["lr"] = self.lr
        return made


@row("`LearningRateFinder`")
def rate_finder(folder: Path) -> None:
    finder = LearningRateFinder(num_training_steps=12, early_stop_threshold=None)
    model = Tuned()
    train(model, [finder], default_root_dir=folder).sound()
    assert model.batches == 24 + 12
    assert len(finder.optimal_lr.results["lr"]) == 12


@row("`BatchSizeFinder`")
def batch_size_finder(folder: Path) -> None:
    model = Tuned()
    finder = BatchSizeFinder(steps_per_trial=2, init_val=4, max_trials=2)
    train(model, [finder], max_epochs=6, default_root_dir=folder).sound(72)
    assert model.batch_size == 8


@row("`trainer.fit` twice")
def fit_twice(folder: Path) -> None:
    run = train(Net("none"), **EPOCHS).sound(36)
    run.trainer.fit_loop.max_epochs = 12
    run.trainer.fit(run.model, loader(), loader(2))
    run.sound(36, global_step=72)


@row("`training_step` returns `None`")
def passes_over(folder: Path) -> None:
    class Passes(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if self.batches - 1 in passed else loss

    whole = train(cosine())
    verifying = [r.step - 1 for r in whole.plugin.records if r.predicted]
    passed = (0, verifying[2])
    with pytest.warns(UserWarning, match="returned `None`"):
        run = train(Passes("cosine"))
    run.sound(full_steps=STEPS - run.ledger.predicted_steps)
    assert run.ledger.undone_steps == 1


refused("two `HybridPredict` callbacks", "expected one HybridPredict", callbacks=[Ungated()])


@row("another callback or the module ends an epoch")
def ends_epoch(folder: Path) -> None:
    class Stops(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx > 4 and verifies(plugin) else None

    plugin = Recorded(skip_data="none")
    run = train(Stops("none"), plugin=plugin, max_steps=36)
    run.sound(full_steps=STEPS - run.ledger.predicted_steps)
    assert run.ledger.undone_steps > 0
