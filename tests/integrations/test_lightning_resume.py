"""A resumed run is the uninterrupted one, bit for bit, from every checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import EVERY_KIND
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_models import Net, SeededLoader, StopAt, Ungated, fit, loader, same, weights
from torch.utils.data import DataLoader, TensorDataset

from compatibility.manual import Gan
from hybrid_predict import HybridPredict
from hybrid_predict.integrations.lightning import KEY

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"cooldown_steps": 0.1},
    "pattern": {"full_steps": 3, "predict_steps": 2},
    "late": {"lag": 3},
    "shadow": {"shadow": True},
    "every kind": {"predictors": EVERY_KIND},
}


def take(folder: Path, kept: Path) -> list[Path]:
    """Move the checkpoints of a run away, in order, so that the folder can be used again."""
    kept.mkdir()
    paths = sorted(folder.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns)
    kept_paths = [path.rename(kept / path.name) for path in paths]
    shutil.rmtree(folder)
    return kept_paths


def mid_epoch(path: Path) -> bool:
    """Whether a Trainer can resume there; the data position of an epoch's end is not saved."""
    loops = torch.load(path, weights_only=True)["loops"]["fit_loop"]
    return not loops["epoch_loop.batch_progress"]["is_last_batch"]


def save_all(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(
        folder, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False
    )


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_resume_from_every_update_is_bit_exact(tmp_path: Path, name: str, window: int) -> None:
    folder = tmp_path / "run"

    def run(**more: Any) -> tuple[HybridPredict, Net]:
        callback = Ungated(**CONFIGS[name])
        _, model = fit([callback, save_all(folder)], train=SeededLoader(length=10), max_steps=36,
                       accumulate_grad_batches=window, **more)  # fmt: skip
        return callback, model

    callback, model = run()
    final, ledger = weights(model), callback.ledger
    resumable = [p for p in take(folder, tmp_path / "kept") if mid_epoch(p)]
    assert len(resumable) > 12
    for path in resumable[:: len(resumable) // 8]:
        shutil.rmtree(folder, ignore_errors=True)
        resumed, again = run(ckpt_path=str(path), seed=99)
        assert same(weights(again), final), path.name
        for count in ("full_steps", "steps", "corrected_steps", "predicted_steps", "undone_steps"):
            assert getattr(resumed.ledger, count) == getattr(ledger, count)


def test_checkpoint_between_multiples_resumes_on_the_clock(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def run(**more: Any) -> tuple[Any, Net]:
        checkpoint = ModelCheckpoint(
            folder, "{step}", every_n_train_steps=7, save_top_k=-1, save_on_train_epoch_end=False
        )
        return fit([Ungated(speedup=2.0), checkpoint], train=SeededLoader(), max_steps=60,
                   **more)  # fmt: skip

    _, model = run()
    resumable = [p for p in take(folder, tmp_path / "kept") if mid_epoch(p)]
    assert len(resumable) > 4
    for path in resumable:
        shutil.rmtree(folder, ignore_errors=True)
        trainer, again = run(ckpt_path=str(path), seed=5)
        assert trainer.global_step == 60
        assert same(weights(again), weights(model)), path.name


def test_a_longer_run_may_continue_a_shorter_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit([Ungated(), save_all(folder)], Net("none"), train=SeededLoader(), max_steps=40)
    callback, path = Ungated(), take(folder, tmp_path / "kept")[12]
    trainer, _ = fit([callback, save_all(folder)], Net("none"), train=SeededLoader(),
                     max_steps=80, ckpt_path=str(path))  # fmt: skip
    assert trainer.global_step == callback.ledger.steps == 80
    assert any(
        "length changed from 40 to 80" in event["reason"] for event in callback.ledger.events
    )


def test_a_checkpoint_of_a_plain_run_starts_the_clock_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit([save_all(folder)], train=SeededLoader(), max_steps=40)
    path = take(folder, tmp_path / "kept")[19]
    callback = Ungated()
    trainer, _ = fit([callback, save_all(folder)], train=SeededLoader(), max_steps=50,
                     ckpt_path=str(path))  # fmt: skip
    assert trainer.global_step == 50
    assert callback.ledger.steps == 30
    assert callback.ledger.full_steps == 20


@pytest.mark.parametrize("lag", [0, 3])
def test_a_run_that_went_on_without_the_plug_in_is_taken_up_where_the_trainer_is(
    tmp_path: Path, lag: int
) -> None:
    folder = tmp_path / "run"

    def run(steps: int, enabled: bool, path: Path | None = None) -> tuple[Any, Net, HybridPredict]:
        callback = Ungated(enabled=enabled, lag=lag)
        trainer, model = fit(
            [callback, StopAt(steps), save_all(folder)], train=SeededLoader(80), max_steps=60,
            ckpt_path=path and str(path),
        )  # fmt: skip
        return trainer, model, callback

    run(20, True)
    first = take(folder, tmp_path / "first")[-1]
    run(40, False, first)
    second = take(folder, tmp_path / "second")[-1]
    carried = torch.load(second, weights_only=True)
    assert 0 < carried[KEY]["engine"]["clock"]["steps"] < 24
    trainer, model, callback = run(99, True, second)
    assert trainer.global_step == callback.ledger.steps == 60
    _, plain = fit([], max_steps=60, train=SeededLoader(80))
    assert len(model.rates) > 5 and min(model.rates) == 40
    assert all(plain.rates[step] == rate for step, rate in model.rates.items())
    assert model.batches < 20
    reasons = [event["reason"] for event in callback.ledger.events]
    assert "the run went on without the plug-in before" in reasons


class SaveAt(StopAt):
    """Saves a checkpoint in the batch in which it stops the Trainer."""

    def __init__(self, step: int, path: Path) -> None:
        super().__init__(step)
        self.path = path

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        super().on_train_batch_end(trainer, *args)
        if trainer.should_stop:
            trainer.save_checkpoint(self.path)


def test_a_manual_run_that_went_on_without_the_plug_in_is_taken_up_where_the_trainer_is(
    tmp_path: Path,
) -> None:
    """Global step counts three updates in every step of this GAN."""
    ends = []
    path: str | None = None
    for stop, enabled in ((30, True), (60, False), (999, True)):
        callback, end = Ungated(enabled=enabled), SaveAt(stop, tmp_path / str(stop))
        trainer, model = fit([callback, end], Gan(2), train=SeededLoader(40), max_epochs=1,
                             ckpt_path=path)  # fmt: skip
        ends.append((trainer.global_step, trainer.lr_scheduler_configs[0].scheduler.last_epoch))
        path = str(end.path)
    assert ends == [(30, 10), (60, 20), (120, 40)]
    assert callback.ledger.steps == 40 and model.batches < 20


LENGTHS = [(20, 1, {}), (16, 4, {}), (7, 1, {"val_check_interval": 0.5})]


@pytest.mark.filterwarnings("ignore:.*fewer than max_epochs")
@pytest.mark.parametrize(("batches", "window", "more"), LENGTHS, ids=str)
def test_a_run_bounded_by_steps_goes_on_bounded_by_epochs_to_the_end_of_the_plain_run(
    tmp_path: Path, batches: int, window: int, more: dict[str, Any]
) -> None:
    steps = 56 // (batches // window) * (batches // window)
    epochs = steps * window // batches
    kwargs = {"accumulate_grad_batches": window, **more}
    saver = ModelCheckpoint(
        tmp_path / "run", "{step}", every_n_train_steps=9, save_top_k=-1, save_last=True,
        save_on_train_epoch_end=False,
    )  # fmt: skip
    fit([Ungated(), saver], Net("none"), train=SeededLoader(batches), max_steps=steps,
        **kwargs)  # fmt: skip
    paths = take(tmp_path / "run", tmp_path / "kept")
    assert len(paths) == steps // 9 + 1
    for path in paths:
        callback = Ungated()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        trainer, _ = fit([callback, saver], Net("none"), train=SeededLoader(batches),
                         max_epochs=epochs, ckpt_path=str(path), **kwargs)  # fmt: skip
        assert trainer.global_step == callback.ledger.steps == steps, path.name
        assert callback.ledger.full_steps == round(steps / 1.5)


def test_a_run_goes_on_with_other_windows_to_where_a_plain_run_does(tmp_path: Path) -> None:
    ends = []
    for k, make in enumerate((Ungated, Callback)):
        saver = ModelCheckpoint(tmp_path / str(k), every_n_epochs=3, save_top_k=1)
        fit([make(), saver], Net("none"), max_epochs=3)
        (path,) = take(tmp_path / str(k), tmp_path / f"kept {k}")
        callback = make()
        trainer, model = fit([callback, saver], Net("none"), max_epochs=6,
                             accumulate_grad_batches=4, ckpt_path=str(path))  # fmt: skip
        ends.append((trainer.global_step, trainer.current_epoch))
        if k == 0:
            assert callback.ledger.steps == 60
            assert model.batches < 48
    assert ends == [(60, 6), (60, 6)]


def test_a_run_that_ends_early_says_so() -> None:
    class Stops(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 5 else None

    with pytest.warns(UserWarning, match=r"ended the run at \d+ of 48 steps"):
        fit([Ungated()], Stops("none"), max_epochs=3)


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_from_the_end_of_an_epoch_is_bit_exact(tmp_path: Path, shuffle: bool) -> None:
    folder = tmp_path / "run"

    def run(**more: Any) -> Net:
        checkpoint = ModelCheckpoint(folder, "{epoch}", every_n_epochs=1, save_top_k=-1)
        data = TensorDataset(torch.randn(160, 8, generator=torch.Generator().manual_seed(3)))
        _, model = fit([Ungated(), checkpoint], max_epochs=5,
                       train=DataLoader(data, 16, shuffle=shuffle), **more)  # fmt: skip
        return model

    final = weights(run())
    for path in take(folder, tmp_path / "kept")[:-1]:
        shutil.rmtree(folder, ignore_errors=True)
        assert same(weights(run(ckpt_path=str(path), seed=9)), final), path.name


def test_a_checkpoint_loaded_for_validation_does_not_rewind_the_next_fit(tmp_path: Path) -> None:
    callback = Ungated()
    trainer, model = fit([callback, save_all(tmp_path / "run")], max_steps=40)
    state, path = weights(model), take(tmp_path / "run", tmp_path / "kept")[12]
    trainer.validate(model, loader(2), ckpt_path=str(path), verbose=False)
    model.load_state_dict(state)
    trainer.fit_loop.epoch_loop.max_steps = 70
    trainer.fit(model, loader(), loader(2))
    assert trainer.global_step == 70
    assert callback.ledger.steps == 30
