"""One callback for the Trainers of ``lightning`` and of ``pytorch_lightning``, and for no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from lightning_models import AnyNet, Net, SeededLoader, Ungated, fit, same, weights

from hybrid_predict.errors import UnsupportedSetupError

TESTS = Path(__file__).parents[1]
PACKAGES = {"lightning": lightning.pytorch, "pytorch_lightning": pytorch_lightning}


def in_a_process(code: str, *hidden: str) -> None:
    """Run code in a process in which these packages are not installed."""
    hide = f"""
import sys
from importlib.machinery import PathFinder
class Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] not in {hidden!r}:
            return super().find_spec(name, path, target)
sys.meta_path = [Hide if finder is PathFinder else finder for finder in sys.meta_path]
"""
    path = os.pathsep.join([str(TESTS / "helpers"), str(TESTS.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", hide + code], env=environment, text=True,
                          capture_output=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr


TRAIN = """
import torch
torch.set_num_threads(1)
class Net({package}.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8),
                                       torch.nn.Linear(8, 1))
    def training_step(self, batch, batch_idx):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
trainer = {package}.Trainer(
    max_steps=15, callbacks=[callback], accelerator="cpu", logger=False, log_every_n_steps=1,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(40, 4), 2))
assert (trainer.global_step, callback.ledger.full_steps) == (15, 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("installed", PACKAGES)
def test_where_one_package_is_installed_the_other_is_not_missed(installed: str) -> None:
    (other,), name = PACKAGES.keys() - {installed}, PACKAGES[installed].__name__
    code = f"""
from hybrid_predict import HybridPredict, MomentumPredictor
callback = HybridPredict(predictors={{"hidden": MomentumPredictor(gated=False)}})
import {name}
{TRAIN.format(package=name)}
assert {other!r} not in sys.modules
"""
    in_a_process(code, other)


def test_where_neither_is_installed_the_extra_is_named() -> None:
    code = """
from hybrid_predict.errors import MissingExtraError
try:
    from hybrid_predict import HybridPredict
except MissingExtraError as error:
    assert "hybrid_predict[lightning]" in str(error)
else:
    raise AssertionError
"""
    in_a_process(code, *PACKAGES)


def run(package: ModuleType, folder: Path, **kwargs: Any) -> dict[str, Any]:
    """A run with every check that a Trainer makes by class: weights, counters, checkpoints."""
    torch.manual_seed(0)
    net: Any = type("Net", (AnyNet, package.LightningModule), {})
    callback = Ungated()
    assert isinstance(callback, package.Callback)
    saver = package.callbacks.ModelCheckpoint(
        folder, "{step}", every_n_train_steps=6, save_top_k=-1, save_on_train_epoch_end=False
    )
    averages = package.callbacks.EMAWeightAveraging(decay=0.9, update_every_n_steps=4)
    scheduler = package.callbacks.GradientAccumulationScheduler({0: 1})
    trainer, model = fit(
        [callback, averages, scheduler, saver], net("cosine"), package=package,
        train=SeededLoader(40), max_steps=36, **kwargs
    )  # fmt: skip
    seconds = ("seconds", "overhead")
    ledger = {k: v for k, v in callback.ledger.summary().items()
              if not any(s in k for s in seconds)}  # fmt: skip
    return {"weights": weights(model), "ledger": ledger, "step": trainer.global_step}


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_of_one_package_goes_on_in_the_other(tmp_path: Path) -> None:
    whole = run(lightning.pytorch, tmp_path / "whole")
    path = tmp_path / "whole" / "step=18.ckpt"
    resumed = run(pytorch_lightning, tmp_path / "resumed", seed=9, ckpt_path=str(path))
    assert resumed["step"] == 36
    assert same(resumed["weights"], whole["weights"])
    assert resumed["ledger"] == whole["ledger"]


def test_other_strategies_and_trainers_of_other_packages_are_refused() -> None:
    trainer = lightning.pytorch.Trainer.__new__(lightning.pytorch.Trainer)
    trainer.callbacks = []
    for strategy in (object(), DeepSpeedStrategy.__new__(DeepSpeedStrategy)):
        trainer._accelerator_connector = SimpleNamespace(strategy=strategy)
        name = type(strategy).__name__
        with pytest.raises(UnsupportedSetupError, match=f"got '?{name}.*ModelParallelStrategy"):
            Ungated().on_train_start(trainer, Net())
    with pytest.raises(UnsupportedSetupError, match="callbacks: expected one HybridPredict, got"):
        fit([Ungated(), Ungated()], max_steps=10)
    with pytest.raises(UnsupportedSetupError, match=r"lightning.pytorch or pytorch_lightning"):
        Ungated().on_train_start(SimpleNamespace(), Net())  # type: ignore[arg-type]
