"""Rows: how long, how often and on what the Trainer trains."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
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
from lightning.pytorch.loggers.logger import DummyLogger
from lightning_models import Net, Recorded, Ungated, loader
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from compatibility.rows import CHECKS, row
from compatibility.subject import EPOCHS, STEPS, Run, Subject, refuses, same_rates, train
from hybrid_predict import UnsupportedSetupError


def sound(kwargs: dict[str, Any], folder: Path, steps: int = STEPS) -> Run:
    run = train(Net("cosine"), default_root_dir=folder, **kwargs).sound(steps)
    assert same_rates(lambda: Net("cosine"), run, default_root_dir=folder, **kwargs)
    return run


def trains(steps: int, kwargs: dict[str, Any], folder: Path) -> None:
    sound(kwargs, folder, steps)


WITH_ARGUMENTS: dict[str, tuple[int, dict[str, Any]]] = {
    "`max_steps`": (36, {"max_steps": 36}),
    "`max_epochs`": (36, EPOCHS),
    "`max_steps` and `max_epochs`": (30, {**EPOCHS, "max_steps": 30}),
    "`max_time` beside another limit": (36, {"max_steps": 36, "max_time": "00:01:00:00"}),
    "`accumulate_grad_batches`": (
        36, {"max_epochs": 9, "limit_train_batches": 10, "accumulate_grad_batches": 3},
    ),
    "`overfit_batches`": (36, {"max_epochs": 6, "overfit_batches": 6}),
    "`limit_train_batches`": (36, {"max_epochs": 6, "limit_train_batches": 6}),
    "`limit_val_batches`": (36, {**EPOCHS, "limit_val_batches": 0}),
    "`val_check_interval` in batches": (
        36, {"max_steps": 36, "val_check_interval": 5, "check_val_every_n_epoch": None},
    ),
    "`check_val_every_n_epoch`": (36, {**EPOCHS, "check_val_every_n_epoch": 2}),
    "`reload_dataloaders_every_n_epochs`": (
        36, {**EPOCHS, "reload_dataloaders_every_n_epochs": 2},
    ),
    "`detect_anomaly`": (36, {"detect_anomaly": True}),
    "`deterministic`": (36, {"deterministic": "warn"}),
}  # fmt: skip

for _name, (_steps, _kwargs) in WITH_ARGUMENTS.items():
    CHECKS[_name] = partial(trains, _steps, _kwargs)


def clipped(kwargs: dict[str, Any], bound: Callable[[int], float], folder: Path) -> None:
    run = sound(kwargs, folder)
    norms = [float(r.gradients.total_norm) for r in run.plugin.records if r.gradients]
    most = bound(sum(p.numel() for p in run.model.parameters()))
    assert len(norms) == 24
    assert all(0 < norm <= most * 1.01 for norm in norms)


CHECKS["`gradient_clip_val`, by norm"] = partial(clipped, {"gradient_clip_val": 0.1}, lambda n: 0.1)
CHECKS["`gradient_clip_val`, by value"] = partial(
    clipped,
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    lambda n: 0.01 * n**0.5,
)


@row('`max_epochs`, `HybridPredict(skip_data="none")`')
def keeps_batches(folder: Path) -> None:
    def make() -> Subject:
        return Subject(scheduler=lambda o, n: OneCycleLR(o, 1e-2, total_steps=n))

    run = train(make(), plugin=Recorded(skip_data="none"), **EPOCHS).sound()
    assert same_rates(make, run, **EPOCHS)
    assert run.trainer.current_epoch == 4


class Silent(Net):
    def log(self, *args: Any, **kwargs: Any) -> None:
        pass


@row("`barebones`")
def barebones(folder: Path) -> None:
    run = train(Silent("cosine"), barebones=True, log_every_n_steps=0).sound()
    assert same_rates(lambda: Silent("cosine"), run)


@row("`val_check_interval` as a share")
def validations(folder: Path) -> None:
    run = sound({**EPOCHS, "val_check_interval": 0.5}, folder)
    assert len(run.witness.seen["validation"]) == 12


@row("`max_time` alone")
def time_alone(folder: Path) -> str:
    return refuses(UnsupportedSetupError, "number of optimizer updates is known.*max_steps",
            max_epochs=-1, max_time="00:00:10:00")  # fmt: skip


@row("`fast_dev_run`")
def fast_dev_run(folder: Path) -> None:
    run = train(max_steps=-1, fast_dev_run=3)
    assert run.trainer.global_step == run.ledger.steps == run.ledger.full_steps == 3
    assert all(run.witness.seen["batch end"])


@row("`GradientAccumulationScheduler`, `max_steps`")
def scheduled_accumulation(folder: Path) -> None:
    def make() -> Net:
        return Net("cosine")

    windows: dict[str, Any] = {"max_steps": STEPS}
    run = train(make(), [GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})], **windows).sound()
    assert run.model.batches > 24
    assert same_rates(make, run, **windows)


@row("`GradientAccumulationScheduler`, `max_epochs`")
def scheduled_accumulation_by_epochs(folder: Path) -> str:
    return refuses(UnsupportedSetupError, "GradientAccumulationScheduler.*max_steps alone",
            callbacks=[GradientAccumulationScheduler({0: 1, 1: 2})], **EPOCHS)  # fmt: skip


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
            return float(run_model.batches)

    run_model = Net("cosine")
    run = train(run_model, [Soon(duration=timedelta(seconds=20))], max_steps=90)
    assert run_model.batches == 20
    run.sound(run.trainer.global_step, full_steps=20)
    assert run.trainer.global_step > 20


@row("`LearningRateMonitor`")
def monitor(folder: Path) -> None:
    lrs = LearningRateMonitor(logging_interval="step")
    run = train(Net("cosine"), [lrs], logger=CSVLogger(folder)).sound()
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


@row("`WandbLogger`")
def wandb_logger(folder: Path) -> None:
    # W&B itself is no dependency of the tests; the proof reads a real offline run where it is.
    class WandbLogger(DummyLogger):
        experiment = SimpleNamespace(summary={}, notes=None, step=0, log=lambda *_, **__: None)

    run = train(Net(), logger=WandbLogger()).sound()
    summary = run.trainer.logger.experiment.summary
    assert summary["hybrid_predict/full_steps"] == run.plugin.ledger.full_steps
    assert summary["hybrid_predict/phase"] == "cooldown"


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
    run = train(model, [finder], max_steps=STEPS, default_root_dir=folder)
    run.sound()
    assert model.batches == 24 + 12
    assert len(finder.optimal_lr.results["lr"]) == 12


@row("`BatchSizeFinder`")
def batch_size_finder(folder: Path) -> None:
    model = Tuned()
    finder = BatchSizeFinder(steps_per_trial=2, init_val=4, max_trials=2)
    run = train(model, [finder], max_epochs=6, default_root_dir=folder)
    assert model.batch_size == 8
    run.sound(72)


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

    whole = train(Net("cosine"))
    verifying = [r.step - 1 for r in whole.plugin.records if r.predicted]
    passed = (0, verifying[2])
    with pytest.warns(UserWarning, match="returned `None`"):
        run = train(Passes("cosine"))
    run.sound(full_steps=STEPS - run.ledger.predicted_steps)
    assert run.ledger.undone_steps == 1


@row("two `HybridPredict` callbacks")
def twice(folder: Path) -> str:
    return refuses(UnsupportedSetupError, "one HybridPredict callback", callbacks=[Ungated()])


@row("another callback or the module ends an epoch")
def ends_epoch(folder: Path) -> None:
    class Stops(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx > 4 and plugin.engine._state.unread else None

    plugin = Recorded(skip_data="none")
    run = train(Stops("none"), plugin=plugin, max_steps=36)
    run.sound(full_steps=STEPS - run.ledger.predicted_steps)
    assert run.ledger.undone_steps > 0
