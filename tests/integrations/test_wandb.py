"""A run in Weights & Biases: one row per interval, texts and the result beside it."""

from __future__ import annotations

from typing import Any

import pytest

from hybrid_predict import HybridConfig, SavingsLedger
from hybrid_predict.integrations.loggers import Loggers
from hybrid_predict.report.run_log import RunLog

AXIS = "trainer/global_step"


class Run:
    """What a logger of W&B writes to, as far as it is used."""

    def __init__(self) -> None:
        self.notes: str | None = None
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
    def __init__(self) -> None:
        self.experiment = Run()
        self.config: dict[str, Any] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.experiment.log({**metrics, AXIS: step})

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.config |= params


def ledger(**more: Any) -> SavingsLedger:
    return SavingsLedger(full_steps=4, steps=5, predicted_steps=1, **more)


@pytest.mark.parametrize("logs", [True, False])
def test_the_users_metrics_of_a_full_step_share_its_row(logs: bool) -> None:
    """So that charts of them can be drawn over steps; without any, no row is lost."""
    logger = WandbLogger()
    loggers = Loggers([logger])
    for step in (3, 7):
        loggers.row(ledger(), step)
        if logs:
            logger.log_metrics({"loss": 0.5}, step)
    loggers.close(0.0)
    rows = logger.experiment.rows
    assert [row[AXIS] for row in rows] == [3, 7]
    assert all(row["hybrid_predict/steps"] == 5 and ("loss" in row) == logs for row in rows)


def test_the_result_and_texts_are_in_the_summary_and_make_no_chart() -> None:
    logger = WandbLogger()
    loggers, result = Loggers([logger]), ledger()
    result.record(3, "something happened")
    loggers.text("phase", "warmup")
    loggers.events(result)
    loggers.outcome(HybridConfig(), result, RunLog(), 3)
    summary = {k.removeprefix("hybrid_predict/"): v for k, v in logger.experiment.summary.items()}
    assert not logger.experiment.rows
    assert summary["phase"] == "warmup" and summary["mode"] == "active"
    assert summary["event.0"] == "full step 3: something happened"
    assert summary["full_steps"] == 4 and summary["saved_steps_fraction"] == pytest.approx(0.2)
    assert "skill" not in summary  # nobody knows it
    assert logger.config["hybrid_predict/speedup"] == 1.5  # a number, to be sorted by
    assert logger.experiment.notes.startswith("**HybridPredict:** 4 full + 1 predicted = 5 steps")
    logger.experiment.notes = "the user's own"
    loggers.outcome(HybridConfig(), result, RunLog(), 3)
    assert logger.experiment.notes == "the user's own"
