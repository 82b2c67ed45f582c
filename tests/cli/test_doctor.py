"""``hybrid-predict doctor``: what is installed, and what works with a Trainer and a model."""

import re
import subprocess
import sys

import pytest
import torch

from hybrid_predict import cli
from hybrid_predict.cli import commands

pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")

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

class Judged(Line):
    metric = "seen"

    def validation_step(self, batch, batch_idx):
        self.log(self.metric, self.training_step(batch, batch_idx))

class Twice(Line):
    optimizer = torch.optim.LBFGS

def build(model=Line, **options):
    return L.Trainer(max_steps=300, accelerator="cpu", **options), model()

def quiet(batches=1.0):
    return build(logger=False, limit_train_batches=batches)

def monitored():
    from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
    watching = [LearningRateMonitor(), EarlyStopping("nothing", check_on_train_epoch_end=True)]
    saving = ModelCheckpoint("kept", every_n_train_steps=1)
    trainer, model = build(Judged, callbacks=[*watching, saving])
    return trainer, model, model.train_dataloader(), model.train_dataloader()

def pair():
    trainer, model = build(Judged, logger=False)
    model.metric = "val_loss"
    return trainer, model, (model.train_dataloader(), model.train_dataloader())

def broken():
    raise FileNotFoundError("no data")

def refused():
    return build(Twice, logger=False)

class Head(torch.nn.Linear):
    def __init__(self):
        super().__init__(512, 1)

class Wide(Line):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 512), torch.nn.Linear(512, 512), Head())

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=1)

def wide():
    return build(Wide, logger=False)

def swapped():
    return tuple(reversed(build(logger=False)))

def needs(width):
    return build(logger=False)

constant = 3
"""

OF_TRANSFORMERS = """
import copy
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        )

    def forward(self, x):
        return {"loss": self.net(x).square().mean()}

class Logger(TrainerCallback):
    called = []

    def on_train_begin(self, *args, **kwargs):
        self.called.append("begin")

def build():
    torch.manual_seed(0)
    model = Net()
    args = TrainingArguments(
        "out", max_steps=60, per_device_train_batch_size=8, use_cpu=True, report_to=[],
        logging_steps=1, save_steps=1, disable_tqdm=True, dataloader_pin_memory=False,
        remove_unused_columns=False, metric_for_best_model="accuracy",
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    rows = [{"x": torch.randn(4)} for _ in range(64)]
    return Trainer(
        model=model, args=args, train_dataset=rows, callbacks=[Logger()],
        optimizers=(optimizer, schedule),
    )

def refused():
    made = build()
    made.optimizer = torch.optim.LBFGS(made.model.parameters())
    made.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(made.optimizer)
    return made
"""

THREE_LINES = (
    r"^finding (expect about 33 % fewer full steps, \d+ % less time|slower on this model: ).+ "
    r"corrects .+ weights \(\d+ %\).+torch.optim.Muon, .+ full step takes .+s in place "
    r"of .+s \(a few were timed\); the run .+s .+ to .+s .+ in place of .+s, .+ (change|paste) "
)

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
    (tmp_path / "of_transformers.py").write_text(OF_TRANSFORMERS)
    (tmp_path / "broken.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("threads_of_mine", "of_transformers", "broken"):
        sys.modules.pop(name, None)


@pytest.fixture
def examine(capsys):
    """Run the command; return its status and what it prints."""

    def run(*arguments):
        status = cli.main(["doctor", *arguments])
        captured = capsys.readouterr()
        assert captured.err == ""
        return status, " ".join(captured.out.split())

    return run


def test_versions_and_missing_extras_are_listed(monkeypatch, examine):
    monkeypatch.setitem(commands.EXTRAS, "bench", ("no_such_package",))
    status, out = examine()
    assert status == 0
    for words in (
        f"torch {torch.__version__}",
        "extras cli, lightning, huggingface",
        'missing no_such_package: pip install "path/to/hybrid_predict[bench]"',
        "hybrid-predict doctor CONFIG",
    ):
        assert words in out


def test_a_function_is_examined_by_a_few_full_steps_that_leave_nothing(work, examine):
    before, state = {path.name for path in work.iterdir()}, torch.get_rng_state()
    status, out = examine("threads_of_mine:quiet")
    assert torch.equal(torch.get_rng_state(), state)
    assert status == 0
    lines = re.search(THREE_LINES, out)
    assert lines is not None and not re.search(r"\de[+-]?\d", lines[0])
    for words in (
        "corrects 96 of 121 weights (79 %), in 2 hidden matrices",
        "could take all of these weights full step takes",
        "paste Trainer(..., callbacks=[..., HybridPredict(speedup=1.5)]) "
        "predicts 2 hidden matrices",
        "1 head, 3 vectors (100 % of the weights) plan ",
        "plan 200 full + up to 100 predicted = 300 steps, warm-up 40 memory",
    ):
        assert words in out
    assert {path.name for path in work.iterdir()} - before <= {"__pycache__"}


def test_a_file_is_examined_with_its_own_settings(examine):
    status, out = examine("file.yaml")
    assert status == 0
    assert "150 full + up to 150 predicted = 300 steps, warm-up 60" in out
    assert "paste Trainer(..., callbacks=[..., HybridPredict(speedup=2.0, warmup_steps=60)])" in out
    status, out = examine("file.yaml", "--speedup", "9")
    assert "speedup=9 asks for 8 predicted steps after every full step" in out


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        (
            "monitored",
            0,
            "validation logs seen, not nothing. Add .+; EarlyStopping, .+ may end the run sooner",
        ),
        ("pair", 0, "overfitting is judged by val_loss"),
        ("refused", commands.REFUSED, "^finding refused: .+ corrects nothing change optimizer: "),
        (
            "wide",
            commands.REFUSED,
            "^finding no gain: .+ corrects nothing change max_overhead allo",
        ),
    ],
)
def test_what_works_and_what_does_not_is_shown_with_its_reason(work, examine, name, status, words):
    ended, out = examine(f"threads_of_mine.py:{name}")
    assert ended == status and re.search(words, out)
    assert re.search("^finding .+ corrects .+ (paste|change) ", out)
    assert not (work / "kept").exists()  # the checkpoint of a callback


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("threads_of_mine", "got 'threads_of_mine'. Name a function: threads_of_mine:build"),
        ("threads_of_mine:biuld", "got 'threads_of_mine:biuld'. Did you mean build?"),
        ("thread_of_mine.py:build", "Did you mean threads_of_mine?"),
        ("threads_of_mine:broken", "It fails in threads_of_mine.py, line "),
        ("threads_of_mine:constant", "3 is not a callable object"),
        ("threads_of_mine:needs", "Python says: TypeError: missing a required argument: 'width'"),
        ("threads_of_mine:swapped", "got 'Line, Trainer'. Let it end with: return trainer, model"),
        ("threads_of_mine:Line", "in this order, or the Trainer of Hugging Face alone, got 'Line'"),
        ("nowhere.py:make", "No module named 'nowhere'"),
        ("broken:build", "Python says: ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_what_cannot_be_examined_is_told_with_the_reason(refused, name, told):
    line = refused("doctor", name)
    assert line.startswith("hybrid-predict: error: CONFIG: expected ") and told in line


def test_a_trainer_of_transformers_is_examined_and_writes_nothing(work, examine):
    pytest.importorskip("transformers")
    status, out = examine("of_transformers.py:build")
    assert status == 0
    for words in (
        "corrects 96 of 121 weights (79 %), in 2 hidden matrices",
        "paste Trainer(..., callbacks=[..., HybridPredictCallback(speedup=1.5)])",
        "overfitting goes unnoticed: the Trainer does not evaluate",
    ):
        assert words in out
    assert re.search(THREE_LINES, out)
    user = sys.modules["of_transformers"]
    assert user.Logger.called == [] and not list(work.glob("out/*"))


def test_a_trainer_of_transformers_needs_no_lightning():
    pytest.importorskip("transformers")
    code = "import sys, hybrid_predict.doctor.huggingface; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "False")


def test_a_trainer_of_transformers_that_is_refused_is_told_so(examine):
    pytest.importorskip("transformers")
    status, out = examine("of_transformers:refused")
    assert status == commands.REFUSED
    assert re.search("^finding refused: .+ corrects nothing change optimizer: ", out)
