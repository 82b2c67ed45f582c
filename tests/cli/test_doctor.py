"""``hybrid-predict doctor``: what is installed, and what works with a Trainer and a model."""

import re
import sys

import pytest
import torch

from hybrid_predict import cli, overview
from hybrid_predict.cli import doctor
from hybrid_predict.rules import budget

pytest.importorskip("lightning")

MODULE = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

class Line(L.LightningModule):
    optimizer = torch.optim.AdamW

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return self.optimizer(self.parameters())

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)

class Twice(Line):
    optimizer = torch.optim.LBFGS

def build(model=Line, **options):
    return L.Trainer(max_steps=300, accelerator="cpu", **options), model()

def quiet():
    return build(logger=False)

class Wide(Line):
    samples = 8

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256),
            torch.nn.Tanh(), torch.nn.Linear(256, 1),
        )

    def train_dataloader(self):
        data = TensorDataset(torch.randn(4 * self.samples, 256))
        return DataLoader(data, batch_size=self.samples)

def wide(samples=8, **options):
    from hybrid_predict import HybridPredict
    model = Wide()
    model.samples = samples
    return build(lambda: model, logger=False, callbacks=[HybridPredict(**options)])

def monitored():
    from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
    class Own(L.Callback):
        def on_train_start(self, trainer, module):
            trainer.logger.log_metrics({"mine": 1.0})
            trainer.logger.experiment.add_text("a", "b")
    watching = [LearningRateMonitor(), EarlyStopping("nothing", check_on_train_epoch_end=True)]
    return build(callbacks=[*watching, Own()])

def without_data():
    class Bare(Line):
        train_dataloader = L.LightningModule.train_dataloader
    return build(Bare, logger=False)

def careless():
    from lightning.pytorch.callbacks import ModelCheckpoint
    from hybrid_predict import HybridPredict
    saving = ModelCheckpoint("kept", every_n_train_steps=1)
    return build(logger=False, callbacks=[saving, HybridPredict(enabled=False)])

def empty():
    return build(logger=False, limit_train_batches=0)

def stopped():
    import os, signal
    from lightning.pytorch.callbacks import LambdaCallback
    end = LambdaCallback(on_train_start=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    return build(logger=False, callbacks=[end])

def stopper() -> L.pytorch.callbacks.EarlyStopping:
    return L.pytorch.callbacks.EarlyStopping("loss")

def leaving():
    raise SystemExit("no data here")

def refused():
    return build(Twice, logger=False)

def nothing():
    return None
"""

FILE = """
model: {class_path: threads_of_mine.Line}
trainer: {max_steps: 300, accelerator: cpu}
audit: {speedup: 2.0, hybrid: {warmup_steps: 60}}
"""


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """A folder with the user's module in it, as current directory."""
    (tmp_path / "threads_of_mine.py").write_text(MODULE)
    (tmp_path / "file.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("threads_of_mine", None)


def told(capsys, *arguments):
    status = cli.main(["doctor", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, " ".join(captured.out.split())


def test_versions_and_missing_extras_are_told(monkeypatch, capsys):
    monkeypatch.setitem(doctor.EXTRAS, "bench", ("no_such_package",))
    status, out = told(capsys)
    assert status == 0
    assert f"torch {torch.__version__}" in out
    assert "extra lightning installed" in out
    assert 'missing no_such_package: pip install "path/to/hybrid_predict[bench]"' in out
    assert "hybrid-predict doctor CONFIG" in out


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_function_is_examined_by_one_full_step_that_leaves_nothing(work, capsys):
    before = {path.name for path in work.iterdir()}
    state = torch.get_rng_state()
    status, out = told(capsys, "threads_of_mine:quiet")
    assert torch.equal(torch.get_rng_state(), state)
    assert status == 0
    assert "works yes corrected 2 hidden matrices predicted 2 hidden matrices: up to 100" in out
    assert "left alone 1 head, 3 vectors" in out
    assert "200 full + up to 100 predicted = 300 steps; warm-up 40" in out
    assert "run log none: set HybridPredict(log_dir=...)" in out
    assert "paste Trainer(..., callbacks=[HybridPredict(speedup=1.5)])" in out
    assert {path.name for path in work.iterdir()} - before <= {"__pycache__"}


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_file_is_examined_with_its_own_settings(capsys):
    status, out = told(capsys, "file.yaml")
    assert status == 0
    assert "150 full + up to 150 predicted = 300 steps; warm-up 60" in out
    assert "paste Trainer(..., callbacks=[HybridPredict(speedup=2.0, warmup_steps=60)])" in out
    status, out = told(capsys, "file.yaml", "--speedup", "9")
    assert "speedup=9 asks for 8 predicted steps after every full step" in out


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "callbacks",
            "[{class_path: Timer}, {class_path: EarlyStopping, init_args: {monitr: x}}]",
            "trainer.callbacks.1.init_args: expected a name that it has, got 'monitr'. "
            "Did you mean monitor?",
        ),
        (
            "callbacks",
            "{class_path: lightning.pytorch.callbacks.Timer, init_args: {durations: 3}}",
            "trainer.callbacks.init_args: expected a name that it has, got 'durations'. "
            "Did you mean duration?",
        ),
        (
            "logger",
            "{class_path: lightning.pytorch.loggers.CSVLoger}",
            "trainer.logger.class_path: expected a class of lightning.pytorch.loggers, got "
            "'CSVLoger'. Did you mean CSVLogger?",
        ),
    ],
    ids=["callback by name", "callback by path", "logger"],
)
def test_a_misspelt_name_in_the_trainer_section_is_told(work, capsys, key, value, said):
    file = FILE.replace("max_steps: 300", f"max_steps: 300, {key}: {value}")
    (work / "file.yaml").write_text(file)
    assert cli.main(["doctor", "file.yaml"]) == 2
    assert capsys.readouterr().err == f"hybrid-predict: error: {said}\n"


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_callbacks_of_a_file_may_be_classes_and_functions(work, capsys):
    callbacks = (
        "[{class_path: LambdaCallback}, {class_path: threads_of_mine.stopper}, "
        "{class_path: RichProgressBar, init_args: {refresh_rate: 2}}]"
    )
    file = FILE.replace("max_steps: 300", f"max_steps: 300, callbacks: {callbacks}")
    (work / "file.yaml").write_text(file)
    assert told(capsys, "file.yaml")[0] == 0


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_no_checkpoint_is_written_and_a_callback_that_is_off_is_examined_as_if_on(work, capsys):
    status, out = told(capsys, "threads_of_mine:careless")
    assert (status, "corrected 2 hidden matrices" in out) == (0, True)
    assert not (work / "kept").exists()


@pytest.fixture
def every_operation_counts(monkeypatch):
    for module in (budget, overview):
        monkeypatch.setattr(module, "SMALLEST_STEP", 0.0)


@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.usefixtures("every_operation_counts")
def test_a_budget_that_refuses_corrections_is_told_with_what_to_type(work, capsys):
    status, out = told(capsys, "threads_of_mine:wide")
    assert status == doctor.REFUSED
    assert "works no, the run would be plain training. no predicted steps" in out
    assert "none is of a kind" not in out and "paste" not in out
    said = re.search(
        r"change max_overhead=0.1 is too small; batches of at least ([\d,]+) samples \(now 8\), "
        r"or max_overhead=([\d.]+), or updates=\{\}",
        out,
    )
    assert said is not None
    samples, limit = int(said[1].replace(",", "")), float(said[2])
    for options, works in [
        (f"{samples}", True),
        (f"{samples - max(2, samples // 50)}", False),
        (f"max_overhead={limit}", True),
        (f"max_overhead={0.9 * limit}", False),
        ("updates={}", True),
    ]:
        name = f"tried_{abs(hash(options))}"
        (work / f"{name}.py").write_text(
            f"import threads_of_mine\ndef f():\n    return threads_of_mine.wide({options})"
        )
        status, out = told(capsys, f"{name}:f")
        assert (status == 0, "works yes" in out) == (works, works), (options, out)


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_callbacks_that_need_more_than_a_trial_has_are_left_out_and_named(capsys):
    status, out = told(capsys, "threads_of_mine:monitored")
    assert (status, "works yes" in out) == (0, True)
    assert "callbacks LearningRateMonitor, EarlyStopping: no part in this trial" in out


def test_a_model_without_data_is_told_in_one_line(capsys):
    assert cli.main(["doctor", "threads_of_mine:without_data"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "CONFIG: expected a model and data to train on" in err


def test_training_that_does_not_start_is_no_success(capsys):
    status, out = told(capsys, "threads_of_mine:empty")
    assert status == doctor.REFUSED
    assert "Training did not start" in out


def test_a_set_up_that_is_refused_is_told_with_its_reason(capsys):
    status, out = told(capsys, "threads_of_mine:refused")
    assert status == doctor.REFUSED
    assert "works no. optimizer: expected" in out
    assert "LBFGS" in out


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_step_that_is_stopped_is_no_error_of_the_model(capsys):
    assert cli.main(["doctor", "threads_of_mine:stopped"]) == 130
    assert capsys.readouterr().err.startswith("hybrid-predict: stopped;")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("threads_of_mine:biuld", "Did you mean build?"),
        ("threads_of_yours:build", "No module named 'threads_of_yours'"),
        ("threads_of_mine:nothing", "returns trainer, model"),
        ("threads_of_mine:leaving", "the model's own code raised SystemExit('no data here')"),
        ("nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_what_cannot_be_built_is_told_in_one_line(capsys, name, said):
    assert cli.main(["doctor", name]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err
