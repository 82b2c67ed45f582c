"""``hybrid-predict doctor``: what is installed, and what works with a Trainer and a model."""

import sys

import pytest
import torch

from hybrid_predict import cli
from hybrid_predict.cli import doctor

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
    return build(callbacks=[*watching, saving])

def refused():
    return build(Twice, logger=False)
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
    monkeypatch.setitem(doctor.EXTRAS, "bench", ("no_such_package",))
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
    for words in (
        "corrects 2 hidden matrices",
        "full step takes",
        "as long as plain training of as many steps",
        "paste Trainer(..., callbacks=[HybridPredict(speedup=1.5)]) predicts 2 hidden matrices",
        "1 head, 3 vectors (100 % of the weights) leaves nothing",
        "plan 200 full + up to 100 predicted = 300 steps, warm-up 40 memory",
    ):
        assert words in out
    assert {path.name for path in work.iterdir()} - before <= {"__pycache__"}


def test_a_file_is_examined_with_its_own_settings(examine):
    status, out = examine("file.yaml")
    assert status == 0
    assert "150 full + up to 150 predicted = 300 steps, warm-up 60" in out
    assert "paste Trainer(..., callbacks=[HybridPredict(speedup=2.0, warmup_steps=60)])" in out
    status, out = examine("file.yaml", "--speedup", "9")
    assert "speedup=9 asks for 8 predicted steps after every full step" in out


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("monitored", 0, "corrects 2 hidden"),
        ("refused", doctor.REFUSED, "works no. optimizer: expected"),
    ],
)
def test_what_works_and_what_does_not_is_shown_with_its_reason(work, examine, name, status, words):
    ended, out = examine(f"threads_of_mine:{name}")
    assert ended == status and words in out
    assert not (work / "kept").exists()  # the checkpoint of a callback
