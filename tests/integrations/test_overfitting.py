"""The metric that a Trainer is monitored by tells the plug-in that a run overfits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning_models import Net, Ungated, fit
from torch import Tensor

from hybrid_predict.policy.overfitting import OVERFITS
from hybrid_predict.policy.policy import Policy
from hybrid_predict.runs.log import NAME, finding, read_log

VALUES = [1.0, 0.6, 0.4, 0.3, *(0.3 + 0.2 * k for k in range(1, 30))]


class Overfitted(Net):
    """Logs, under any name, values that get worse while the training loss falls."""

    def __init__(self, name: str = "val_loss", sign: float = 1.0) -> None:
        super().__init__("none")
        self.values: Iterator[float] = iter([sign * value for value in VALUES])
        self.name = name

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) - 0.1 * self.global_step

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log(self.name, next(self.values))

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log nothing by batch."""


def run(callback: Ungated, model: Net, *further: Any, **options: Any) -> Any:
    lengths = {"max_steps": 160, "val_check_interval": 8, "check_val_every_n_epoch": None}
    return fit([callback, *further], model, **lengths, **options)[0]


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint, "val_loss", "valid/Loss"])
def test_the_monitored_metric_tells_that_a_run_overfits(kind: Any, tmp_path: Path) -> None:
    unmonitored = isinstance(kind, str)
    name = kind if unmonitored else "score"
    further = {
        EarlyStopping: [EarlyStopping("score", patience=99, mode="max"), ModelCheckpoint(tmp_path)],
        ModelCheckpoint: [ModelCheckpoint(tmp_path, monitor="score", mode="max")],
    }.get(kind, [])
    callback = Ungated()
    run(callback, Overfitted(name, 1.0 if unmonitored else -1.0), *further)
    ledger = callback.ledger
    assert ledger.best is not None and ledger.best["metric"] == name
    assert abs(ledger.best["value"]) == pytest.approx(0.3)
    events = [event for event in ledger.events if event["reason"].startswith(OVERFITS)]
    assert len(events) == 1
    assert 0 < ledger.predicted_steps < 40


def test_a_run_that_overfits_may_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lightning.pytorch.utilities.rank_zero")
    callback = Ungated(on_overfit="stop", log_dir=str(tmp_path))
    trainer = run(callback, Overfitted())
    found = finding(read_log(tmp_path / NAME))
    assert "finished after" in found
    assert found.endswith("; it has overfitted")
    assert 32 < trainer.global_step < 120
    assert callback.ledger.steps == trainer.global_step
    assert 'HybridPredict (stopped because it overfits, on_overfit="stop"): ' in caplog.text


class NowAndThen(Overfitted):
    """Logs in training, and in every other validation alone."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss)
        return loss

    def on_validation_epoch_end(self) -> None:
        value = next(self.values)
        if VALUES.index(value) % 2:
            self.log(self.name, value)


def test_a_metric_that_training_logs_does_not_count_nor_one_of_an_earlier_validation(
    tmp_path: Path,
) -> None:
    seen: list[float] = []
    callback = Ungated()
    model = NowAndThen()
    saving = ModelCheckpoint(tmp_path, monitor="train_loss")
    with mock.patch.object(Policy, "validate", lambda self, value: seen.append(value)):
        run(callback, model, saving, num_sanity_val_steps=0)
    assert callback.ledger.best is not None
    assert callback.ledger.best["metric"] == "val_loss"
    assert len(seen) > 3 and seen == pytest.approx(VALUES[1 : 2 * len(seen) : 2])


def test_a_run_without_the_metric_says_so(caplog: pytest.LogCaptureFixture) -> None:
    callback = Ungated()
    with caplog.at_level("INFO"):
        run(callback, Overfitted("another"))
    assert callback.ledger.best is None
    told = [text for text in caplog.messages if "overfitting would go unnoticed" in text]
    assert len(told) == 1
