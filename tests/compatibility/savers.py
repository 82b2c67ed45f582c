"""Rows: what saves, averages or finds weights beside the plug-in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning_models import Net, SeededLoader, Ungated, fit, same
from witness import Witness, parameters

from compatibility.rows import row, rows
from compatibility.subject import EPOCHS, Run, Subject, cosine, mlp, train, warned
from hybrid_predict.ranks import processes
from hybrid_predict.ranks.shards import local


class Saved(Callback):
    """Notes whether every checkpoint holds the weights that the last update has left."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.right: list[bool] = []

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        state, left = checkpoint["state_dict"], self.witness.whole(module)
        held = left.keys() & state.keys() if processes.rank() else left.keys()  # rank 0 has all
        self.right.append(all(torch.equal(state[name], left[name]) for name in held))


MODES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "`monitor`, `save_top_k`": ({"monitor": "val_loss", "save_top_k": 2}, EPOCHS, 2),
    "`every_n_train_steps`": ({"every_n_train_steps": 6}, {}, 6),
    "`every_n_epochs`": ({"every_n_epochs": 2}, EPOCHS, 3),
    "`train_time_interval`": ({"train_time_interval": timedelta(0)}, {}, 24),
    "`save_last`": ({"save_last": True, "save_top_k": 0}, EPOCHS, 1),
}


@rows({f"`ModelCheckpoint`, {name}": arguments for name, arguments in MODES.items()})
def saves(options: dict[str, Any], kwargs: dict[str, Any], files: int, folder: Path) -> None:
    saved = Saved(Witness())
    saver = ModelCheckpoint(folder / "run", **{"save_top_k": -1, **options})
    train(cosine(), [saved, saver], witness=saved.witness, **kwargs).sound()
    assert saved.right and all(saved.right)
    paths = list((folder / "run").glob("*.ckpt"))
    assert len(paths) == files
    for path in paths:
        state = torch.load(path, weights_only=True)["hybrid_predict"]
        assert 0 < state["engine"]["ledger"]["steps"] <= 36


class Broken(Net):
    """Fails between forward and update of one batch."""

    def on_before_zero_grad(self, optimizer: Any) -> None:
        if self.batches == 15:
            raise RuntimeError("stop here")


@row("`ModelCheckpoint(save_on_exception=True)`", partial(ModelCheckpoint, save_on_exception=True))
@row("`OnExceptionCheckpoint`", OnExceptionCheckpoint)
def saved_on_exception(make: Callable[[Path], Callback], folder: Path) -> None:
    saved, kept = Saved(Witness()), folder / "kept.ckpt"

    class Keep(Callback):
        def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
            if processes.rank() == 0:
                torch.save(checkpoint, kept)
            processes.gather(None)  # until it is written

    callbacks = [Ungated(), saved.witness, saved, make(folder / "run"), Keep()]
    with warnings.catch_warnings():
        # Lightning looks for the checkpoint of an earlier exception.
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(RuntimeError, match="stop here"):
            fit(callbacks, Broken("cosine"), train=SeededLoader(40), max_steps=36)
        assert saved.right == [True]
        assert any(saved.witness.moved)
        again = {"train": SeededLoader(40), "ckpt_path": str(kept)}
        resumed = train(cosine(), [make(folder / "run")], **again).sound()
    assert resumed.model.batches < 24


@row('`ckpt_path="last"`')
def last(folder: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = trainer.global_step >= 20

    def run(place: str, *more: Callback, **kwargs: Any) -> Run:
        torch.manual_seed(0)
        saver = ModelCheckpoint(folder / place, save_last=True, every_n_train_steps=5)
        return train(Net("cosine"), [*more, saver], train=SeededLoader(40), max_steps=36,
                     limit_val_batches=0, **kwargs)  # fmt: skip

    whole = run("whole").sound()
    half = run("run", Stop())
    assert half.trainer.global_step < 36
    with warned("not empty"):
        resumed = run("run", ckpt_path="last", seed=9).sound()
    assert 0 < resumed.model.batches < 24
    assert same(resumed.weights, whole.weights)


@row("`WeightAveraging`")
def averaging(folder: Path) -> None:
    run = train(cosine(), [WeightAveraging()], watched=("batch end",)).sound()
    left = run.witness.whole(run.model)
    assert not torch.equal(run.weights["net.4.weight"], left["net.4.weight"])


@row("`EMAWeightAveraging`")
def moving_average(folder: Path) -> None:
    class Counting(EMAWeightAveraging):
        updates: tuple[int, ...] = ()

        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            before = int(self._average_model.n_averaged)
            super().on_train_batch_end(trainer, module, *args)
            if int(self._average_model.n_averaged) > before:
                self.updates += (trainer.global_step,)

    plain, hybrid = (Counting(decay=0.9, update_every_n_steps=4) for _ in range(2))
    fit([plain], Net("cosine"), max_steps=36)
    train(Net("cosine"), [hybrid], watched=("batch end",)).sound()
    assert hybrid.updates == plain.updates
    assert len(plain.updates) == 9


@row("`StochasticWeightAveraging`", lambda: Subject(mlp()), 0)
@row("`StochasticWeightAveraging` with batch norm", Subject, 1)
def swa(make: Callable[[], Net], extra: int, folder: Path) -> None:
    average = StochasticWeightAveraging(1e-3, swa_epoch_start=3, annealing_epochs=2)
    witness, ends = Witness(), []

    class Watch(Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if 2 <= trainer.current_epoch < 6:
                ends.append(local(parameters(module)["net.0.weight"]).clone())
            if trainer.current_epoch == 6:
                witness.left.clear()  # the averages are in the model from here on

    watched = ("batch end", "validation")
    run = train(make(), [average, Watch()], witness=witness, watched=watched, **EPOCHS)
    run.sound(global_step=36 + extra)
    mean = torch.stack(ends).mean(0)
    torch.testing.assert_close(local(parameters(run.model)["net.0.weight"]), mean)
    assert run.model.rates[max(run.model.rates)] != pytest.approx(1e-2)


@row("`ModelPruning`")
def pruning(folder: Path) -> None:
    prune = ModelPruning("l1_unstructured", amount=0.2, use_global_unstructured=True)
    train(Subject(mlp()), [prune], watched=("batch end",), **EPOCHS).sound()
