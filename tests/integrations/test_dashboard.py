"""The live view in the training process: in the progress bar's place, and gone without a trace."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback, ProgressBar, RichProgressBar, TQDMProgressBar
from lightning_models import Net, Ungated, fit
from rich.console import Console

from hybrid_predict.integrations import dashboard
from hybrid_predict.report.run_log import NAME, read_log

BARS = pytest.mark.parametrize("kind", [TQDMProgressBar, RichProgressBar])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output as a terminal of 80 columns, which rich's own console writes to."""
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=80, height=30)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("rich.get_console", lambda: console)
    monkeypatch.setattr(dashboard, "_EVERY", 0.0)
    return stream


class Spoken(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("mine", 0.25, prog_bar=True)
        return loss


class Watcher(Callback):
    """What stands in a progress bar's and a handler's place while the view is shown."""

    def __init__(self, bar: Any, handler: logging.StreamHandler[Any]) -> None:
        self.bar, self.handler = bar, handler
        self.rested: set[bool] = set()
        self.streams: list[Any] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.rested.add(self.bar.is_disabled)
        self.streams.append(self.handler.stream)


@BARS
@pytest.mark.parametrize("log_dir", [None, "here"])
def test_the_view_takes_the_bars_place_and_gives_it_back(
    monkeypatch: pytest.MonkeyPatch, kind: Any, log_dir: str | None, tmp_path: Path
) -> None:
    screen = terminal(monkeypatch)
    stream = sys.stderr
    handler, bar = logging.StreamHandler(stream), kind()
    logging.getLogger("mine").addHandler(handler)
    watcher = Watcher(bar, handler)
    folder = None if log_dir is None else tmp_path / log_dir
    try:
        plugin = Ungated(dashboard=True, log_dir=folder)
        fit([plugin, bar, watcher], Spoken(), max_steps=60, enable_progress_bar=True)
    finally:
        logging.getLogger("mine").removeHandler(handler)
    assert watcher.rested == {True} and not bar.is_disabled
    assert all(s is not stream for s in watcher.streams) and handler.stream is stream
    shown = screen.getvalue()
    assert "60/60 steps" in shown and "it/s" not in shown
    assert "yours   mine 0.25" in shown
    assert "40 full + 20 predicted (20 planned)" in shown
    assert shown.count("HybridPredict corrects and predicts") == 1
    assert shown.endswith("\x1b[?25h")  # the cursor is back
    assert (tmp_path / "here" / NAME).exists() is (log_dir is not None)


@BARS
def test_a_failure_leaves_bar_and_cursor(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    screen = terminal(monkeypatch)

    class Broken(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.batches == 7:
                raise ValueError("no such image")
            return super().training_step(batch, batch_idx)

    bar = kind()
    with pytest.raises(ValueError, match="no such image"):
        fit([Ungated(dashboard=True), bar], Broken(), max_steps=60, enable_progress_bar=True)
    assert not bar.is_disabled
    shown = screen.getvalue()
    assert "failed: ValueError: no such image" in shown
    assert shown.endswith("\x1b[?25h")


@BARS
def test_a_view_that_fails_ends_neither_training_nor_bar(
    kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    terminal(monkeypatch)

    def broken(*args: Any) -> Any:
        raise OSError("the terminal is gone")

    monkeypatch.setattr(dashboard, "lines", broken)
    bar = kind()
    plugin = Ungated(dashboard=True, log_dir=str(tmp_path))
    trainer, _ = fit([plugin, bar], max_steps=20, enable_progress_bar=True)
    assert trainer.global_step == 20
    assert caplog.text.count("cannot draw its live view") == 1
    assert not bar.is_disabled
    assert read_log(tmp_path / NAME).status == "finished"


def test_where_there_is_no_terminal_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fit([Ungated(dashboard=True)], max_steps=20)
    expected = "HybridPredict shows no dashboard: standard output is not a terminal"
    assert caplog.text.count(expected) == 1


def test_a_bar_that_cannot_rest_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal(monkeypatch)

    class Own(ProgressBar):
        """Shows nothing, and cannot be disabled."""

    caplog.set_level(logging.INFO)
    fit([Ungated(dashboard=True), Own()], max_steps=20, enable_progress_bar=True)
    assert "HybridPredict shows no dashboard: Own cannot be disabled." in caplog.text


def test_a_disabled_callback_leaves_the_bar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    bar = TQDMProgressBar()
    watcher = Watcher(bar, logging.StreamHandler())
    plugin = Ungated(dashboard=True, enabled=False)
    fit([plugin, bar, watcher], max_steps=5, enable_progress_bar=True)
    assert watcher.rested == {False}
