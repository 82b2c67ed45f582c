"""A run that is asked to stop ends between verified weights, with a checkpoint to go on from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning_models import Net, SeededLoader, Ungated, fit, same, weights

from hybrid_predict.integrations import lightning_stop
from hybrid_predict.report.line_file import LONGEST
from hybrid_predict.report.run_log import NAME, find_log, read_log
from hybrid_predict.report.stop_request import STOP, ask, is_asked

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the request in every full step, however fast they are."""
    monkeypatch.setattr(lightning_stop, "_EVERY", 0.0)


class AskAt(Callback):
    """Asks the run to stop in some batch."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.folder, self.batch = folder, batch
        self.seen = 0

    def on_train_batch_start(self, *args: Any) -> None:
        self.seen += 1
        if self.seen == self.batch:
            ask(read_log(find_log(self.folder)))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.usefixtures("always")
def test_a_run_stops_with_a_checkpoint_from_which_it_goes_on_bit_for_bit(
    tmp_path: Path, window: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    long: dict[str, Any] = {"max_steps": 60, "accumulate_grad_batches": window}
    whole, stopped, resumed = (Ungated(log_dir=tmp_path / name) for name in "abc")
    _, expected = fit([whole], train=SeededLoader(), **long)
    first, _ = fit([stopped, AskAt(tmp_path / "b", 21)], train=SeededLoader(), **long)
    log = read_log(tmp_path / "b" / NAME)
    assert log.end is not None and log.status == "stopped as asked"
    assert log.ledger.full_steps == stopped.ledger.full_steps == -(-21 // window)
    path = Path(log.end["checkpoint"])
    assert path == tmp_path / "b" / "checkpoints" / f"stopped-step={first.global_step}.ckpt"
    assert "HybridPredict stopped as asked after" in caplog.text
    assert f"HybridPredict saved {path}, to go on from." in caplog.text
    assert not path.parent.with_name(STOP).exists()
    second, model = fit([resumed], train=SeededLoader(), ckpt_path=str(path), seed=7, **long)
    assert second.global_step == 60
    assert same(weights(model), weights(expected))
    assert resumed.ledger.full_steps == whole.ledger.full_steps


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "",
        "\xff",
        "[" * 100_000,
        '{"started": 1e999}',
        json.dumps({"started": 990.0}),
        json.dumps({"started": None}),
    ],
    ids=lambda text: text[:9],
)
@pytest.mark.usefixtures("always")
def test_a_request_to_an_earlier_run_or_a_damaged_one_is_passed_over(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / STOP).write_text(text)
    plugin = Ungated(log_dir=str(tmp_path))
    trainer, _ = fit([plugin], max_steps=20)
    assert trainer.global_step == 20
    assert read_log(tmp_path / NAME).status == "finished"
    assert (tmp_path / STOP).read_text() == text
    assert not (tmp_path / "checkpoints").exists()


def test_no_more_is_read_than_a_request_has(tmp_path: Path) -> None:
    for note, asked in (("", True), ("x" * LONGEST, False)):
        (tmp_path / STOP).write_text(json.dumps({"started": 1.0, "note": note}))
        assert is_asked(tmp_path / NAME, 1.0) is asked


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are files on POSIX systems only")
@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, make: str) -> None:
    getattr(os, make)(tmp_path / STOP)
    code = (
        "from pathlib import Path\n"
        "from hybrid_predict.report.stop_request import is_asked\n"
        f"print(is_asked(Path({str(tmp_path / NAME)!r}), 1.0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


@pytest.mark.usefixtures("always")
def test_a_run_that_goes_on_in_the_folder_is_not_stopped_again(tmp_path: Path) -> None:
    plugin = Ungated(log_dir=str(tmp_path))
    fit([plugin, AskAt(tmp_path, 5)], train=SeededLoader(), max_steps=20)
    killed = read_log(tmp_path / NAME).path.read_text().splitlines()[:-1]
    (tmp_path / NAME).write_text("\n".join(killed) + "\n")
    ask(read_log(tmp_path / NAME))  # too late: it is dead
    (path,) = (tmp_path / "checkpoints").iterdir()
    trainer, _ = fit([plugin], train=SeededLoader(), max_steps=20, ckpt_path=str(path))
    assert trainer.global_step == 20
    assert read_log(tmp_path / NAME).status == "finished"


def test_looks_are_about_a_second_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

    class Tick(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            Clock.now += 0.05

    def look(*args: Any) -> bool:
        looks.append(Clock.now)
        return False

    looks: list[float] = []
    monkeypatch.setattr(lightning_stop, "monotonic", lambda: Clock.now)
    monkeypatch.setattr("hybrid_predict.integrations.reporter.is_asked", look)
    fit([Ungated(log_dir=str(tmp_path), speedup=1), Tick()], max_steps=200)
    assert len(looks) == 10
    assert all(later - before == pytest.approx(1.0) for before, later in pairwise(looks))


def test_without_an_event_log_nothing_is_looked_at() -> None:
    class Look(Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            names.update(type(c).__name__ for c in trainer.callbacks)  # type: ignore[attr-defined]

    names: set[str] = set()
    fit([Ungated(), Look()], max_steps=5)
    assert "MissedCheckpoints" in names and "StopRequests" not in names


@pytest.mark.usefixtures("always")
def test_nothing_of_it_is_left_in_the_trainer(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    trainer, _ = fit([Ungated()], Net(), max_steps=10, logger=logger)
    assert not any(type(c).__name__ == "StopRequests" for c in trainer.callbacks)


@pytest.mark.usefixtures("always")
def test_a_run_whose_checkpoint_cannot_be_saved_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoints").write_text("a file in the folder's place")
    plugin = Ungated(log_dir=str(tmp_path))
    trainer, _ = fit([plugin, AskAt(tmp_path, 5)], train=SeededLoader(), max_steps=20)
    assert trainer.global_step == 20
    assert caplog.text.count("the run continues") == 1
    assert read_log(tmp_path / NAME).status == "finished"


@pytest.mark.usefixtures("always")
def test_a_run_stops_when_the_trainer_may_and_not_before(tmp_path: Path) -> None:
    plugin = Ungated(log_dir=str(tmp_path))
    options: dict[str, Any] = {"max_steps": 40, "min_steps": 20}
    trainer, _ = fit([plugin, AskAt(tmp_path, 5)], train=SeededLoader(), **options)
    assert 20 <= trainer.global_step < 40
    (path,) = (tmp_path / "checkpoints").iterdir()
    assert path.name == f"stopped-step={trainer.global_step}.ckpt"
