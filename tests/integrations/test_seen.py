"""What people see while a run trains: lines and the run log."""

import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning_models import Net, Ungated, fit
from torch import Tensor

from benchmarks.placebos import NegatedForecast
from hybrid_predict import HybridPredict
from hybrid_predict.integrations import reporter
from hybrid_predict.runs.log import NAME, find_logs, read_log


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The plug-in's lines among Lightning's own."""
    caplog.set_level(logging.INFO, "lightning.pytorch.utilities.rank_zero")

    def printed() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        own = [text for text in messages if text.startswith("HybridPredict")]
        return [text for text in own if not text.startswith("HybridPredict, full step")]

    return printed


@pytest.mark.parametrize(("kind", "mine"), [(TQDMProgressBar, "skill"), (RichProgressBar, "mine")])
def test_the_progress_bar_shows_two_short_entries_after_the_users_own(
    kind: Any, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bar(kind):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            shown.append(self.get_metrics(trainer, module))

    class Barred(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.log(mine, 42.0, prog_bar=True)
            return super().training_step(batch, batch_idx)

    shown: list[dict[str, Any]] = []
    plugin, bar = HybridPredict(), Bar()
    trainer, _ = fit([plugin, bar], Barred(), max_steps=60, enable_progress_bar=True)
    assert list(shown[0]) == [mine, "predicted"]
    skill = f"{plugin.ledger.skill:.2f}" if mine == "mine" else 42.0
    share = f"{100 * plugin.ledger.saved_steps_fraction:.0f} %"
    assert shown[-1] == {mine: 42.0, "predicted": share, "skill": skill}
    assert "predicted" not in trainer.callback_metrics


def test_an_error_in_reporting_does_not_end_the_training(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "overview", lambda engine: 1 / 0)
    plugin = Ungated()
    fit([plugin], max_steps=30)
    assert plugin.ledger.steps == 30
    assert caplog.text.count("could not record the run in Reporter") == 1


def test_one_line_at_the_start_and_one_at_the_end(lines: Any) -> None:
    plugin = Ungated()
    fit([plugin], max_steps=60)
    first, last = lines()
    for words in (" %), in 2 hidden matrices; ", "predicts 2 hidden matri",
                  "leaves 1 head, 5 vectors (", "plan 40 full + up to 20 predicted = 60 steps",
                  "correcting adds 117 %", "counted as if it had 100 million"):  # fmt: skip
        assert words in first
    assert last == f"HybridPredict: {plugin.ledger}."


@pytest.mark.parametrize("kind", [TQDMProgressBar, RichProgressBar])
def test_lines_and_warnings_are_printed_above_a_progress_bar(
    kind: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = logging.getLogger("hybrid_predict")
    monkeypatch.setattr(package, "propagate", False)  # the user has configured no logging
    written: list[str] = []
    monkeypatch.setattr(reporter.tqdm, "write", lambda text, file: written.append(text))
    fit([HybridPredict(max_overhead=0.0), kind()], max_epochs=5, enable_progress_bar=True)
    starts = ("HybridPredict skips", "HybridPredict, full step 1: fell back",
              "HybridPredict leaves", "HybridPredict: ")  # fmt: skip
    assert all(map(str.startswith, written, starts)) and len(written) == len(starts)
    # Events of the constructor come before the reporter.
    rest = re.sub("HybridPredict, full step", "", "".join(capsys.readouterr()))
    assert not package.handlers and "HybridPredict" not in rest


@pytest.mark.parametrize(
    ("callbacks", "start", "end"),
    [
        ([HybridPredict(speedup="auto")], "plan auto, at least", "; 90 full + 0 predicted = 90"),
        ([HybridPredict(predictors={"hidden": NegatedForecast()}, max_overhead=100)], "plan ",
         "; no predicted steps while forecasts have not shown enough skill."),
        ([HybridPredict(max_overhead=0.0)], "leaves this run to plain training since full",
         "; plain training since full step 1 (the warning there says why)."),
    ],
    ids=["auto", "without skill", "no budget"],
)  # fmt: skip
def test_the_lines_say_what_is_particular_about_a_run(
    callbacks: Any, start: str, end: str, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fit(callbacks, max_steps=90)
    assert start in lines()[0] and end in lines()[-1]
    assert caplog.text.count("fell back to plain training: ") == (start[0] == "l")


def test_the_last_line_tells_seconds_lost_without_predicted_steps(lines: Any) -> None:
    plugin = HybridPredict(speedup=1, max_overhead=100.0)
    fit([plugin], max_steps=60)
    assert plugin.ledger.overhead_fraction > 0.05  # a full step takes less than a millisecond
    assert lines()[-1].startswith("HybridPredict: took longer, ")


def test_the_last_line_tells_that_a_run_has_ended_in_its_warm_up(lines: Any) -> None:
    class Stopping(Net):
        def on_train_batch_end(self, *args: Any) -> None:
            self.trainer.should_stop = self.trainer.global_step >= 20

    fit([HybridPredict()], Stopping(), max_steps=10_000)
    told = "it ended in its warm-up of 500 steps, without predictions; see warmup_steps"
    assert told in lines()[-1]


def test_the_last_line_tells_of_a_loss_that_is_not_finite(lines: Any) -> None:
    class Exploding(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * (math.nan if batch_idx > 2 else 1.0)

    fit([HybridPredict()], Exploding(), max_epochs=5)
    assert re.search(r"training loss [\d.]+ to nan", lines()[-1])


def test_a_length_that_the_trainer_determines_is_told(lines: Any) -> None:
    with pytest.warns(match=r"HybridPredict\(total_steps=99\) has no effect.*takes 30"):
        fit([HybridPredict(total_steps=99)], max_steps=30)


def test_the_run_log_lies_beside_the_loggers_own_files(tmp_path: Path) -> None:
    logger, plugin = CSVLogger(tmp_path), Ungated()
    fit([plugin], max_steps=60, logger=logger)
    log = read_log(find_logs(tmp_path)[0])
    assert log.path == Path(logger.log_dir, NAME)
    assert (log.status, log.steps, len(log.rows)) == ("finished", 60, 40)
    assert log.ledger.summary() == plugin.ledger.summary()
    assert plugin.history.rows == log.rows
    assert log.start["config"]["total_steps"] == 60
    assert log.start["plan"]["predicted"] == 20
    assert all(row.loss and row.loss > 0 for row in log.rows)


@pytest.mark.parametrize(
    ("log_dir", "logger", "left"),
    [
        ("auto", DummyLogger(), []),
        (None, CSVLogger("logs"), ["logs"]),
        ("here", CSVLogger("logs"), ["here", "logs"]),
    ],
)
def test_the_log_can_be_put_elsewhere_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_dir: Any, logger: Any, left: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fit([Ungated(log_dir=log_dir)], max_steps=10, logger=logger)
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    assert [path.parent.name for path in tmp_path.rglob(NAME)] == left[: log_dir == "here"]
