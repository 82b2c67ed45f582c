"""A resumed run is the uninterrupted one, bit for bit, from every checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from hybrid_predict import CheckpointError, FixedHorizon, HybridConfig, HybridPredict
from lightning_models import Net, SeededLoader, fit, loader, same, weights

CONFIGS = {
    "default": HybridConfig(cooldown_fraction=0.1),
    "cycles": HybridConfig(period=3, correct_steps=2, cooldown_fraction=0.1),
    "late": HybridConfig(lag=3),
    "shadow": HybridConfig(shadow=True, horizon=FixedHorizon(updates=4.0)),
    "handed over": HybridConfig(horizon=FixedHorizon(updates=0.0), patience=5),
}


def take(folder: Path, kept: Path) -> list[Path]:
    """Move the checkpoints of a run away, in order, so that the folder can be used again."""
    kept.mkdir()
    paths = sorted(folder.glob("*.ckpt"), key=lambda p: int(p.stem.split("=")[1]))
    return [path.rename(kept / path.name) for path in paths]


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
        callback = HybridPredict(config=CONFIGS[name])
        _, model = fit([callback, save_all(folder)], train=SeededLoader(length=10), max_steps=36,
                       accumulate_grad_batches=window, **more)  # fmt: skip
        return callback, model

    callback, model = run()
    final, ledger = weights(model), callback.ledger
    resumable = [p for p in take(folder, tmp_path / "kept") if mid_epoch(p)]
    assert len(resumable) > 12
    for path in resumable[:: len(resumable) // 8]:
        shutil.rmtree(folder)
        resumed, again = run(ckpt_path=str(path), seed=99)
        assert same(weights(again), final), path.name
        assert resumed.ledger.full_steps == ledger.full_steps
        assert resumed.ledger.forecasts == ledger.forecasts


def test_checkpoint_between_multiples_resumes_on_the_clock(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def run(**more: Any) -> tuple[Any, Net]:
        checkpoint = ModelCheckpoint(
            folder, "{step}", every_n_train_steps=7, save_top_k=-1, save_on_train_epoch_end=False
        )
        return fit([HybridPredict(speedup=2.0), checkpoint], train=SeededLoader(), max_steps=60,
                   **more)  # fmt: skip

    _, model = run()
    resumable = [p for p in take(folder, tmp_path / "kept") if mid_epoch(p)]
    assert len(resumable) > 4
    for path in resumable:
        shutil.rmtree(folder)
        trainer, again = run(ckpt_path=str(path), seed=5)
        assert trainer.global_step == 60
        assert same(weights(again), weights(model)), path.name


def test_a_longer_run_may_continue_a_shorter_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit([HybridPredict(), save_all(folder)], Net("none"), train=SeededLoader(), max_steps=40)
    callback, path = HybridPredict(), take(folder, tmp_path / "kept")[12]
    trainer, _ = fit([callback, save_all(folder)], Net("none"), train=SeededLoader(),
                     max_steps=80, ckpt_path=str(path))  # fmt: skip
    assert trainer.global_step == callback.ledger.equivalent_steps == 80
    assert any("length changed" in event["reason"] for event in callback.ledger.events)


def test_a_checkpoint_of_a_plain_run_starts_the_clock_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit([save_all(folder)], train=SeededLoader(), max_steps=40)
    path = take(folder, tmp_path / "kept")[19]
    callback = HybridPredict()
    trainer, _ = fit([callback, save_all(folder)], train=SeededLoader(), max_steps=50,
                     ckpt_path=str(path))  # fmt: skip
    assert trainer.global_step == 50
    assert callback.ledger.equivalent_steps == 30
    assert callback.ledger.full_steps == 20


def test_another_clock_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit([HybridPredict(), save_all(folder)], train=SeededLoader(), max_steps=12)
    path = take(folder, tmp_path / "kept")[3]
    with pytest.raises(CheckpointError, match="clock"):
        fit([HybridPredict(clock="real"), save_all(folder)], train=SeededLoader(), max_steps=12,
            ckpt_path=str(path))  # fmt: skip


@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_from_the_end_of_an_epoch_is_bit_exact(tmp_path: Path, shuffle: bool) -> None:
    folder = tmp_path / "run"

    def run(**more: Any) -> Net:
        checkpoint = ModelCheckpoint(folder, "{epoch}", every_n_epochs=1, save_top_k=-1)
        data = TensorDataset(torch.randn(160, 8, generator=torch.Generator().manual_seed(3)))
        _, model = fit([HybridPredict(), checkpoint], max_epochs=5,
                       train=DataLoader(data, 16, shuffle=shuffle), **more)  # fmt: skip
        return model

    final = weights(run())
    for path in take(folder, tmp_path / "kept")[:-1]:
        shutil.rmtree(folder)
        assert same(weights(run(ckpt_path=str(path), seed=9)), final), path.name


def test_a_checkpoint_loaded_for_validation_does_not_rewind_the_next_fit(tmp_path: Path) -> None:
    callback = HybridPredict()
    trainer, model = fit([callback, save_all(tmp_path / "run")], max_steps=40)
    state, path = weights(model), take(tmp_path / "run", tmp_path / "kept")[12]
    trainer.validate(model, loader(2), ckpt_path=str(path), verbose=False)
    model.load_state_dict(state)
    trainer.fit_loop.epoch_loop.max_steps = 70
    trainer.fit(model, loader(), loader(2))
    assert trainer.global_step == 70
    assert callback.ledger.equivalent_steps == 30
