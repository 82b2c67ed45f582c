"""What one arm of an audit builds and refuses."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    RichModelSummary,
    TQDMProgressBar,
)
from lightning_models import Net, loader

from hybrid_predict import HybridPredict
from hybrid_predict.audit import audit
from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.config import SHORTENED, AuditConfig
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.store import RunStore
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FULL, HYBRID, SHORT

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def arm(name, folder, speedup=1.5):
    scale = speedup if name in SHORTENED else 1.0
    return AuditArm(name, 0, folder, AuditConfig(speedup=speedup), scale)


def trained(make_run, name, folder, **options):
    """Train one arm from seed 0; return its entry."""
    config = AuditConfig(mlflow=False, **options)
    return Runs(make_run, RunStore(folder, config), None).get(config, name, 0)


@pytest.mark.parametrize("name", ARMS)
def test_trainer_has_the_length_of_its_arm(tmp_path, name):
    trainer = arm(name, tmp_path).trainer(max_epochs=4, max_steps=90, accelerator="cpu")
    lengths = (60, 3) if name in (SHORT, CORRECTED) else (90, 4)
    assert (trainer.max_steps, trainer.max_epochs) == lengths
    plugins = [c for c in trainer.callbacks if isinstance(c, HybridPredict)]
    assert [c.config.speedup for c in plugins] == {CORRECTED: [1.0], HYBRID: [1.5]}.get(name, [])
    assert str(tmp_path) == trainer.default_root_dir


def test_the_callback_comes_first_and_what_draws_on_the_terminal_is_left_out(tmp_path):
    given = [LearningRateMonitor(), TQDMProgressBar(), RichModelSummary()]
    trainer = arm(HYBRID, tmp_path).trainer(max_steps=9, callbacks=given)
    assert [type(c) for c in trainer.callbacks] == [HybridPredict, LearningRateMonitor]


class Spy(Net):
    """Notes that training has begun."""

    def training_step(self, *args):
        raise AssertionError("training has begun")


def loaders():
    return loader(), loader(2)


class Tired(Net):
    def on_train_batch_end(self, *args):
        self.trainer.should_stop = True


class Stopping(Spy):
    def configure_callbacks(self):
        return EarlyStopping("val_loss")


def run(model=Spy, data=None, **options):
    """Build ``make_run`` of a task of six steps, unless the options have another length."""

    def make_run(arm):
        length = {} if options.keys() & {"max_steps", "max_epochs"} else {"max_steps": 6}
        return arm.trainer(**length, **options), model(), data or loaders()

    return make_run


BAD_RUNS = {
    "a pair": (lambda a: (a.trainer(max_steps=6), Spy()), "make_run: expected the Trainer that"),
    "two devices": (run(accelerator="cpu", devices=2), "expected a single device"),
    "no validation loader": (run(data=(loader(), None)), "'val_loss' from a validation"),
    "two epochs": (run(max_epochs=2), "shorter at speedup 1.5, got .*'max_epochs': 2}. Set max_st"),
    "an early end": (run(Tired, min_steps=1, max_steps=30), "a run of 30 steps, got"),
    "a callback of the model": (run(Stopping), "callbacks: expected no EarlyStopping"),
}


@pytest.mark.filterwarnings("ignore:You defined a .validation_step.")
@pytest.mark.parametrize(("make_run", "words"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_runs_that_cannot_be_audited_are_refused_before_training(tmp_path, make_run, words):
    config = AuditConfig(mlflow=False)
    with pytest.raises((ConfigError, UnsupportedSetupError), match=words):
        audit(make_run, config, tmp_path)
    assert not (tmp_path / "runs.jsonl").exists()


def test_missing_metric_is_told_before_training_with_those_that_are_logged(tmp_path):
    with pytest.raises(ConfigError, match=r"got 'val_los'. The run logs val_loss\."):
        trained(run(Spy), FULL, tmp_path, metric="val_los")


class Split(L.LightningDataModule):
    """Draws anew in every setup what is validated on."""

    def __init__(self):
        super().__init__()
        self.draws = []

    def setup(self, stage):
        self.draws.append(float(torch.rand(())))

    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        data = torch.full((32, 8), self.draws[-1])
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=16)


class Noting(Net):
    """Its metric tells the data and the random states of the last validation."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", batch[0].mean() + torch.rand(()))


def test_last_validation_is_on_the_runs_own_data_from_the_same_states(tmp_path):
    drawn = []
    for name in ARMS:
        data = Split()

        def make_run(arm, data=data):
            torch.rand(1 + ARMS.index(arm.name))  # whatever training draws differs between arms
            return arm.trainer(max_steps=18), Noting("none"), data

        drawn.append(trained(make_run, name, tmp_path / name)["metric"] - data.draws[0])
    assert drawn == pytest.approx(drawn[:1] * len(ARMS), rel=1e-5)


def test_metric_that_is_not_finite_is_told_from_weights_that_are_not(tmp_path):
    class Broken(Net):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.tensor(float("nan")))

    entry = trained(run(lambda: Broken("none")), FULL, tmp_path)
    assert (entry["metric"], entry["failure"]) == (None, "metric not finite")
