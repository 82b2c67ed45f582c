"""A resumed run is the uninterrupted one, bit for bit, from every checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_models import Net, SeededLoader, StopAt, Ungated, fit, same, weights
from loops import hurry
from torch.utils.data import DataLoader, TensorDataset

from compatibility.manual import Gan
from compatibility.subject import EVERY_KIND, mlp
from hybrid_predict import HybridPredict
from hybrid_predict.integrations.lightning import KEY

pytestmark = pytest.mark.filterwarnings(
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:The dirpath has changed",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:Using ModelCheckpoint with manual optimization",
)


def save_every(folder: Path, steps: int) -> ModelCheckpoint:
    """A callback that saves at every multiple, in the middle of epochs too."""
    return ModelCheckpoint(
        folder, "{step}", every_n_train_steps=steps, save_top_k=-1, save_on_train_epoch_end=False
    )


def saved(folder: Path) -> list[Path]:
    """The checkpoints of a run, in order."""
    return sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)


def mid_epoch(path: Path) -> bool:
    """Whether a Trainer can resume there; the data position of an epoch's end is not saved."""
    loops = torch.load(path, weights_only=True)["loops"]["fit_loop"]
    return not loops["epoch_loop.batch_progress"]["is_last_batch"]


class Hurried(Ungated):
    """With ``speedup="auto"`` it takes predicted steps from its first step on."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        assert self.engine is not None
        if self.engine.config.paced and not self.engine.ledger.full_steps:
            hurry(self.engine)


class Grows(Net):
    """Every epoch is longer than the one before.

    Lightning leaves out a validation that was due at a checkpoint, so nothing is drawn at random.
    """

    def __init__(self) -> None:
        super().__init__("none")
        self.net = mlp()

    def train_dataloader(self) -> Any:
        data = SeededLoader(4 + 3 * self.trainer.current_epoch)
        data.epoch = self.trainer.current_epoch
        return data


STEPS: dict[str, Any] = {"max_steps": 42}
GROWS: dict[str, Any] = {"model": Grows, "reload_dataloaders_every_n_epochs": 1}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "default": ({"cooldown_steps": 0.1}, {**STEPS, "accumulate_grad_batches": 2}, 1),
    "skipped multiples": ({"full_steps": 3, "predict_steps": 2}, STEPS, 7),
    "auto": (
        {"speedup": "auto", "predictors": EVERY_KIND.predictors},
        {**STEPS, "accumulate_grad_batches": 2}, 1,
    ),
    "epochs that differ": (
        {"speedup": 2.0}, {**GROWS, "max_epochs": 5, "val_check_interval": 0.4}, 1,
    ),
    "several optimizers": ({}, {"model": Gan, "max_steps": 72}, 2),
}  # fmt: skip
"""Options, those of the Trainer, and steps between checkpoints."""


@pytest.mark.parametrize("name", RUNS)
def test_resume_is_bit_exact(tmp_path: Path, name: str) -> None:
    options, limits, every = RUNS[name]
    make = limits.get("model", Net)
    limits = {key: value for key, value in limits.items() if key != "model"}

    def run(*savers: Callback, **more: Any) -> tuple[HybridPredict, Net]:
        callback = Hurried(**options)
        train = None if make is Grows else SeededLoader(length=10)
        model = make()
        fit([callback, *savers], model, train=train, **limits, **more)
        return callback, model

    callback, model = run(save_every(tmp_path, every))
    resumable = [path for path in saved(tmp_path) if mid_epoch(path)]
    assert len(resumable) > 3
    assert callback.ledger.predicted_steps > 5
    for path in resumable[1 :: 1 + len(resumable) // 3]:
        resumed, again = run(ckpt_path=str(path), seed=99)
        assert again.trainer.global_step == model.trainer.global_step
        assert same(weights(again), weights(model)), path.name
        for count in ("full_steps", "steps", "corrected_steps", "predicted_steps", "undone_steps"):
            assert getattr(resumed.ledger, count) == getattr(callback.ledger, count)


def test_a_checkpoint_of_a_plain_run_starts_the_run_there(tmp_path: Path) -> None:
    fit([save_every(tmp_path, 20)], train=SeededLoader(), max_steps=40)
    callback = Ungated()
    trainer, _ = fit([callback], train=SeededLoader(), max_steps=50,
                     ckpt_path=str(saved(tmp_path)[0]))  # fmt: skip
    assert trainer.global_step == 50
    assert (callback.ledger.steps, callback.ledger.full_steps) == (30, 20)


class SaveAt(StopAt):
    """Saves a checkpoint in the batch in which it stops the Trainer."""

    def __init__(self, step: int, path: Path) -> None:
        super().__init__(step)
        self.path = path

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        super().on_train_batch_end(trainer, *args)
        if trainer.should_stop:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("make", [Net, lambda: Gan(2)], ids=["automatic", "manual"])
def test_a_run_that_went_on_without_the_plug_in_is_taken_up_where_the_trainer_is(
    tmp_path: Path, make: Any
) -> None:
    """The global step counts three updates in every step of this GAN."""
    path: str | None = None
    updates = 3 if make is not Net else 1
    for stop, enabled in ((20, True), (40, False), (999, True)):
        callback = Ungated(enabled=enabled)
        end = SaveAt(stop * updates, tmp_path / str(stop))
        trainer, model = fit([callback, end], make(), train=SeededLoader(60), max_epochs=1,
                             ckpt_path=path)  # fmt: skip
        path = str(end.path)
        if stop == 40:
            carried = torch.load(path, weights_only=True)[KEY]["engine"]["ledger"]
            assert 0 < carried["steps"] < 24
    assert trainer.global_step == 60 * updates and callback.ledger.steps == 60
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 60
    assert model.batches < 20
    reasons = [event["reason"] for event in callback.ledger.events]
    assert "the run went on without the plug-in before" in reasons


class SavesFirst(Callback):
    """Saves at the ends of epochs, before the callbacks behind it are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.current_epoch}.ckpt")


@pytest.mark.parametrize(("first", "shuffle"), [(False, True), (True, False)])
def test_resume_from_the_end_of_an_epoch_is_bit_exact(
    tmp_path: Path, shuffle: bool, first: bool
) -> None:
    def run(folder: str, **more: Any) -> Net:
        saver = ModelCheckpoint(tmp_path / folder, "{epoch}", every_n_epochs=1, save_top_k=-1)
        data = TensorDataset(torch.randn(160, 8, generator=torch.Generator().manual_seed(3)))
        savers = [SavesFirst(tmp_path / folder), Ungated()] if first else [Ungated(), saver]
        _, model = fit(savers, Net("cosine", "epoch"), max_epochs=3,
                       train=DataLoader(data, 16, shuffle=shuffle), **more)  # fmt: skip
        return model

    final = weights(run("whole"))
    for path in saved(tmp_path / "whole")[:-1]:
        assert same(weights(run("resumed", ckpt_path=str(path), seed=9)), final), path.name
