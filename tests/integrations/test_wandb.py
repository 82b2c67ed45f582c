"""A run in Weights & Biases: one row per interval, texts and the result beside it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning_models import Net, Ungated, fit

from hybrid_predict import HybridConfig, SavingsLedger
from hybrid_predict.integrations.loggers import Loggers
from hybrid_predict.report.run_log import RunLog

AXIS = "trainer/global_step"


class Run:
    """What a logger of W&B writes to, as far as it is used."""

    def __init__(self, notes: str | None = None) -> None:
        self.notes = notes
        self.summary: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self._row: dict[str, Any] = {}

    @property
    def step(self) -> int:
        return len(self.rows)

    def log(self, values: dict[str, Any], commit: bool = True) -> None:
        self._row.update(values)
        if commit and self._row:
            self.rows.append(self._row)
            self._row = {}


class WandbLogger:
    def __init__(self, notes: str | None = None) -> None:
        self.experiment = Run(notes)
        self.config: dict[str, Any] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.experiment.log({**metrics, AXIS: step})

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.config |= params


def ledger(**more: Any) -> SavingsLedger:
    return SavingsLedger(full_steps=4, steps=5, predicted_steps=1, **more)


@pytest.mark.parametrize("own", [True, False])
def test_the_users_metrics_of_a_full_step_share_its_row(own: bool) -> None:
    """So that charts of them can be drawn over steps; without any, no row is lost."""
    logger = WandbLogger()
    loggers = Loggers([logger])
    for step in (3, 7):
        loggers.row(ledger(), step)
        if own:
            logger.log_metrics({"loss": 0.5}, step)
    loggers.close(0.0)
    rows = logger.experiment.rows
    assert [row[AXIS] for row in rows] == [3, 7]
    assert all(row["hybrid_predict/steps"] == 5 and ("loss" in row) == own for row in rows)


def test_the_result_and_texts_are_in_the_summary_and_make_no_chart() -> None:
    logger = WandbLogger()
    loggers, found = Loggers([logger]), ledger()
    found.record(3, "something happened")
    loggers.text("phase", "warmup")
    loggers.events(found)
    loggers.outcome(HybridConfig(), found, RunLog(), 3)
    summary = {k.removeprefix("hybrid_predict/"): v for k, v in logger.experiment.summary.items()}
    assert not logger.experiment.rows
    assert summary["phase"] == "warmup" and summary["mode"] == "active"
    assert summary["event.0"] == "full step 3: something happened"
    assert summary["full_steps"] == 4 and summary["saved_steps_fraction"] == pytest.approx(0.2)
    assert "skill" not in summary  # nobody knows it
    assert logger.config["hybrid_predict/speedup"] == 1.5  # a number, to be sorted by
    assert logger.experiment.notes.startswith("**HybridPredict:** 4 full + 1 predicted = 5 steps")


def test_notes_of_the_users_own_stay() -> None:
    logger = WandbLogger("mine")
    Loggers([logger]).outcome(HybridConfig(), ledger(), RunLog(), 3)
    assert logger.experiment.notes == "mine"


def records(path: Path) -> Iterator[Any]:
    """The records of an offline run's file: a log of blocks of 32 KiB, as of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def items(found: Any) -> dict[str, Any]:
    return {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in found}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_an_offline_run_holds_what_the_ledger_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    from lightning.pytorch.loggers import WandbLogger

    class Logging(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    monkeypatch.setenv("WANDB_SILENT", "true")
    logger, callback = WandbLogger(mode="offline", save_dir=tmp_path, project="p"), Ungated()
    fit([callback], Logging(), max_steps=30, logger=logger, log_every_n_steps=5)
    wandb.finish()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows, summary, config, notes = [], {}, {}, ""
    for record in records(path):
        if record.HasField("history"):
            rows.append(items(record.history.item))
        elif record.HasField("summary"):
            summary |= items(record.summary.update)
        elif record.HasField("run"):
            config, notes = items(record.run.config.update), record.run.notes
    found, full_steps = callback.ledger, callback.ledger.full_steps
    ours = [row for row in rows if "hybrid_predict/steps" in row]  # others are of validations
    assert [row[AXIS] for row in ours] == sorted({*range(4, full_steps, 5), full_steps - 1})
    assert all("loss" in row for row in ours)
    assert ours[-1]["hybrid_predict/steps"] == 30 == found.steps
    assert not [name for row in rows for name in row if name.startswith("hybrid_predict_end")]
    assert summary["hybrid_predict/full_steps"] == full_steps
    assert summary["hybrid_predict/phase"] == "cooldown"
    assert config["hybrid_predict/speedup"] == 1.5
    assert notes.startswith(f"**HybridPredict:** {found}.")
