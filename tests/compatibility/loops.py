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

from compatibility.rows import Table
from compatibility.subject import EPOCHS, STEPS, Run, Subject, refuses, same_rates, train
from hybrid_predict import UnsupportedSetupError

TABLE = Table("loop")


def trains(steps: int, kwargs: dict[str, Any], folder: Path) -> Run:
    run = train(Net("cosine"), default_root_dir=folder, **kwargs).sound(steps)
    assert same_rates(lambda: Net("cosine"), run, default_root_dir=folder, **kwargs)
    return run


WITH_ARGUMENTS: list[tuple[str, int, dict[str, Any], str]] = [
    ("`max_steps`", 36, {"max_steps": 36}, "all batches are used, so fewer epochs are seen"),
    ("`max_epochs`", 36, EPOCHS, "each epoch has about 1 / speedup of its batches"),
    ("`max_steps` and `max_epochs`", 30, {**EPOCHS, "max_steps": 30}, "whichever comes first"),
    (
        "`max_time` beside another limit", 36, {"max_steps": 36, "max_time": "00:01:00:00"},
        "the run's length is that of the other limit",
    ),
    (
        "`accumulate_grad_batches`", 36,
        {"max_epochs": 9, "limit_train_batches": 10, "accumulate_grad_batches": 3},
        "predicted steps come before a window's first batch",
    ),
    ("`overfit_batches`", 36, {"max_epochs": 6, "overfit_batches": 6}, ""),
    ("`limit_train_batches`", 36, {"max_epochs": 6, "limit_train_batches": 6}, ""),
    ("`limit_val_batches`", 36, {**EPOCHS, "limit_val_batches": 0}, ""),
    (
        "`val_check_interval` in batches", 36,
        {"max_steps": 36, "val_check_interval": 5, "check_val_every_n_epoch": None},
        "counts batches as Lightning does, so a shorter run has fewer validations",
    ),
    ("`check_val_every_n_epoch`", 36, {**EPOCHS, "check_val_every_n_epoch": 2}, ""),
    (
        "`reload_dataloaders_every_n_epochs`", 36,
        {**EPOCHS, "reload_dataloaders_every_n_epochs": 2}, "",
    ),
    ("`detect_anomaly`", 36, {"detect_anomaly": True}, ""),
    ("`deterministic`", 36, {"deterministic": "warn"}, ""),
]  # fmt: skip

for _name, _steps, _kwargs, _note in WITH_ARGUMENTS:
    _shown = {k: v for k, v in _kwargs.items() if k in _name or k not in EPOCHS}
    _arguments = ", ".join(f"{k}={v!r}" for k, v in _shown.items())
    TABLE.add(_name, f"`Trainer({_arguments})`", partial(trains, _steps, _kwargs), note=_note)


def clipped(kwargs: dict[str, Any], bound: Callable[[int], float], folder: Path) -> None:
    run = trains(36, kwargs, folder)
    norms = [float(r.gradients.total_norm) for r in run.plugin.records if r.gradients]
    most = bound(sum(p.numel() for p in run.model.parameters()))
    assert len(norms) == 24
    assert all(0 < norm <= most * 1.01 for norm in norms)


TABLE.add(
    "`gradient_clip_val`, by norm", "`Trainer(gradient_clip_val=0.1)`",
    partial(clipped, {"gradient_clip_val": 0.1}, lambda n: 0.1), note="measured as clipped",
)  # fmt: skip
TABLE.add(
    "`gradient_clip_val`, by value",
    '`Trainer(gradient_clip_val=0.01, gradient_clip_algorithm="value")`',
    partial(
        clipped,
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        lambda n: 0.01 * n**0.5,
    ),
    note="measured as clipped",
)


@TABLE.row(
    '`max_epochs`, `HybridPredict(skip_data="none")`',
    '`HybridPredict(skip_data="none")`',
    note="no batch is skipped, so the run ends after fewer epochs, with its steps",
    proof="integrations/test_lightning_clock.py::test_skip_data_decides_which_batches_are_seen",
)
def keeps_batches(folder: Path) -> None:
    def make() -> Subject:
        return Subject(scheduler=lambda o, n: OneCycleLR(o, 1e-2, total_steps=n))

    run = train(make(), plugin=Recorded(skip_data="none"), **EPOCHS).sound()
    assert same_rates(make, run, **EPOCHS)
    assert run.trainer.current_epoch == 4


class Silent(Net):
    def log(self, *args: Any, **kwargs: Any) -> None:
        pass


@TABLE.row("`barebones`", "`Trainer(barebones=True)`", note="nothing is logged")
def barebones(folder: Path) -> None:
    run = train(Silent("cosine"), barebones=True, log_every_n_steps=0).sound()
    assert same_rates(lambda: Silent("cosine"), run)


@TABLE.row(
    "`val_check_interval` as a share",
    "`Trainer(val_check_interval=0.5)`",
    note="every validation runs; batches are never skipped across one",
    proof="integrations/test_lightning_clock.py::test_every_validation_of_the_clock_runs",
)
def validations(folder: Path) -> None:
    run = trains(36, {**EPOCHS, "val_check_interval": 0.5}, folder)
    assert len(run.witness.seen["validation"]) == 12


@TABLE.row(
    "`max_time` alone",
    '`Trainer(max_time="00:00:10:00")`',
    outcome="UnsupportedSetupError",
    note="the run's length is unknown; set `max_steps`, or `HybridPredict(total_steps=...)`",
    proof="integrations/test_lightning_clock.py"
    "::test_a_length_that_the_trainer_does_not_know_can_be_given",
)
def time_alone(folder: Path) -> None:
    refuses(UnsupportedSetupError, "number of optimizer updates is known.*max_steps",
            max_epochs=-1, max_time="00:00:10:00")  # fmt: skip


@TABLE.row(
    "`fast_dev_run`",
    "`Trainer(fast_dev_run=3)`",
    note="so few steps are all warm-up and cooldown",
)
def fast_dev_run(folder: Path) -> None:
    run = train(max_steps=-1, fast_dev_run=3)
    assert run.trainer.global_step == run.ledger.steps == run.ledger.full_steps == 3
    assert all(run.witness.seen["batch end"])


@TABLE.row(
    "`GradientAccumulationScheduler`, `max_steps`",
    "`callbacks=[GradientAccumulationScheduler({0: 1, 1: 2})]`",
)
def scheduled_accumulation(folder: Path) -> None:
    def make() -> Net:
        return Net("cosine")

    windows: dict[str, Any] = {"max_steps": STEPS}
    run = train(make(), [GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})], **windows).sound()
    assert run.model.batches > 24
    assert same_rates(make, run, **windows)


@TABLE.row(
    "`GradientAccumulationScheduler`, `max_epochs`",
    "`callbacks=[GradientAccumulationScheduler({0: 1, 1: 2})]`",
    outcome="UnsupportedSetupError",
    note="epochs differ in their number of updates; set `max_steps` alone",
)
def scheduled_accumulation_by_epochs(folder: Path) -> None:
    refuses(UnsupportedSetupError, "GradientAccumulationScheduler.*max_steps alone",
            callbacks=[GradientAccumulationScheduler({0: 1, 1: 2})], **EPOCHS)  # fmt: skip


@TABLE.row(
    "`EarlyStopping`",
    "`callbacks=[EarlyStopping(...)]`",
    note="patience counts validations, as always",
)
def early_stopping(folder: Path) -> None:
    run = train(Net("none"), [EarlyStopping("val_loss", patience=2, min_delta=1e9)], **EPOCHS)
    assert run.trainer.current_epoch == 3
    # An epoch may end a step early or late.
    assert abs(run.trainer.global_step - 18) <= 1
    run.sound(run.trainer.global_step, full_steps=run.model.batches)
    assert run.model.batches < 15


@TABLE.row(
    "`Timer`",
    "`callbacks=[Timer(duration=...)]`",
    note="the schedule is cut off, as always",
)
def timer(folder: Path) -> None:
    class Soon(Timer):
        def time_elapsed(self, stage: Any = "train") -> float:
            return float(run_model.batches)

    run_model = Net("cosine")
    run = train(run_model, [Soon(duration=timedelta(seconds=20))], max_steps=90)
    assert run_model.batches == 20
    run.sound(run.trainer.global_step, full_steps=20)
    assert run.trainer.global_step > 20


@TABLE.row(
    "`LearningRateMonitor`",
    "`callbacks=[LearningRateMonitor()]`",
    note="logs over full steps, like every logger",
)
def monitor(folder: Path) -> None:
    lrs = LearningRateMonitor(logging_interval="step")
    run = train(Net("cosine"), [lrs], logger=CSVLogger(folder)).sound()
    (column,) = lrs.lrs.values()
    assert len(column) == 24
    assert column == list(run.model.rates.values())


@TABLE.row(
    "a logger that raises",
    "`Trainer(logger=[broken, sound])`",
    note="one warning; the other loggers and the run go on",
    proof="integrations/test_logging.py::"
    "test_a_logger_that_fails_costs_a_warning_and_the_others_are_served",
)
def broken_logger(folder: Path) -> None:
    class Broken(CSVLogger):
        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            if any(name.startswith("hybrid_predict") for name in metrics):
                raise ConnectionError("the server is gone")

    train(Net(), logger=[Broken(folder, "broken"), CSVLogger(folder, "sound")]).sound()


@TABLE.row(
    "`WandbLogger`",
    '`Trainer(logger=WandbLogger(mode="offline"))`',
    note="texts and the result in the run's summary; charts of your metrics over steps",
    proof="integrations/test_wandb.py::test_an_offline_run_holds_what_the_ledger_says",
)
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


@TABLE.row(
    "`LearningRateFinder`",
    "`callbacks=[LearningRateFinder()]`",
    note="searches before the run starts, without the plug-in",
)
def rate_finder(folder: Path) -> None:
    finder = LearningRateFinder(num_training_steps=12, early_stop_threshold=None)
    model = Tuned()
    run = train(model, [finder], max_steps=STEPS, default_root_dir=folder)
    run.sound()
    assert model.batches == 24 + 12
    assert len(finder.optimal_lr.results["lr"]) == 12


@TABLE.row(
    "`BatchSizeFinder`",
    "`callbacks=[BatchSizeFinder()]`",
    note="searches before the run starts, without the plug-in",
)
def batch_size_finder(folder: Path) -> None:
    model = Tuned()
    finder = BatchSizeFinder(steps_per_trial=2, init_val=4, max_trials=2)
    run = train(model, [finder], max_epochs=6, default_root_dir=folder)
    assert model.batch_size == 8
    run.sound(72)


@TABLE.row(
    "`trainer.fit` twice",
    "`trainer.fit(...)` again, with more epochs",
    note="the second fit has steps of its own, from where the first ended",
    proof="integrations/test_lightning_clock.py::test_second_fit_continues_the_clock",
)
def fit_twice(folder: Path) -> None:
    run = train(Net("none"), **EPOCHS).sound(36)
    run.trainer.fit_loop.max_epochs = 12
    run.trainer.fit(run.model, loader(), loader(2))
    run.sound(36, global_step=72)


@TABLE.row(
    "`training_step` returns `None`",
    "passes over a batch",
    note="a predicted step before it is undone; such a step counts once, as always",
)
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


@TABLE.row(
    "two `HybridPredict` callbacks",
    "`callbacks=[HybridPredict(), HybridPredict()]`",
    outcome="UnsupportedSetupError",
    note="keep one of them",
)
def twice(folder: Path) -> None:
    refuses(UnsupportedSetupError, "one HybridPredict callback", callbacks=[Ungated()])


@TABLE.row(
    "another callback or the module ends an epoch",
    "`on_train_batch_start` returns -1",
    note="predicted steps before a full step that does not come are undone",
    proof="integrations/test_lightning_safety.py"
    "::test_an_epoch_broken_off_before_its_step_undoes_its_predicted_steps",
)
def ends_epoch(folder: Path) -> None:
    class Stops(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx > 4 and plugin.engine._state.unread else None

    plugin = Recorded(skip_data="none")
    run = train(Stops("none"), plugin=plugin, max_steps=36)
    run.sound(full_steps=STEPS - run.ledger.predicted_steps)
    assert run.ledger.undone_steps > 0
