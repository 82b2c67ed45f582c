"""Metrics reach every logger of the Trainer; MLflow gets the finished run's artifacts too."""

from __future__ import annotations

import csv
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger
from lightning_models import Net, Recorded, Ungated, fit

from hybrid_predict import HybridConfig, HybridPredict, SavingsLedger
from hybrid_predict.integrations.loggers import NOTE, Loggers
from hybrid_predict.report.run_log import NAME, RunLog, read_log


class AtPredicted:
    """The first verifying step, as ``nan_at`` of a net."""

    def __init__(self, callback: HybridPredict) -> None:
        self.callback = callback

    def __contains__(self, batch: int) -> bool:
        ledger, clock = self.callback.ledger, self.callback.engine.clock
        return clock.unread > 0 and ledger.undone_steps == 0


COURSE = {
    "steps", "predicted_steps", "saved_steps_fraction", "overhead_fraction",
    "estimated_seconds_saved",
}  # fmt: skip
RESULT = {"full_steps", "corrected_steps", "predicted_steps", "undone_steps", "events"}


def plain(name: str) -> str:
    """A metric's name without its group."""
    return name.removeprefix("hybrid_predict/").removeprefix("hybrid_predict_end/")


def plugin_rows(logger: CSVLogger) -> list[dict[str, str]]:
    """The rows of the course, and behind them that of the result."""
    logger.save()
    with open(Path(logger.log_dir, "metrics.csv")) as file:
        rows = list(csv.DictReader(file))
    found = [{plain(k): v for k, v in r.items() if v} for r in rows]
    course = [r for r in found if "steps" in r]
    (result,) = [r for r in found if "full_steps" in r]
    return [*course, result]


def test_csv_logger_gets_a_row_per_logging_interval(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    callback = Ungated()
    fit([callback], max_steps=60, logger=logger, log_every_n_steps=8)
    *rows, result = plugin_rows(logger)
    assert [int(r["step"]) for r in rows] == [7, 15, 23, 31, 39]
    assert float(rows[-1]["steps"]) == 60 and float(result["full_steps"]) == 40
    assert rows[-1].keys() >= COURSE and not RESULT - COURSE & rows[-1].keys()
    assert result.keys() >= RESULT and int(result["step"]) == 39
    assert "hybrid_predict/speedup" in Path(logger.log_dir, "hparams.yaml").read_text()


@pytest.mark.parametrize("mode", [{}, {"shadow": True}, {"updates": {}}, {"speedup": 1}], ids=str)
def test_the_last_rows_are_the_ledger(tmp_path: Path, mode: dict[str, Any]) -> None:
    """Plain, corrected and predicted steps are counted separately."""
    logger, callback = CSVLogger(tmp_path), Recorded(**mode)
    fit([callback], max_steps=30, logger=logger)
    *_, last, result = plugin_rows(logger)
    ledger = callback.ledger
    for name in ("full_steps", "corrected_steps", "predicted_steps", "undone_steps"):
        assert float(result[name]) == pytest.approx(getattr(ledger, name))
    assert float(last["steps"]) == ledger.steps
    assert "skill" not in last  # nobody knows it yet
    assert (ledger.corrected_steps > 0) == (not {"shadow", "updates"} & mode.keys())
    assert (ledger.predicted_steps > 0) == (not {"shadow", "speedup"} & mode.keys())


class Spy:
    """A logger that notes its rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append({plain(k): v for k, v in metrics.items()})

    def log_hyperparams(self, params: Any, metrics: Any = None) -> None:
        self.given = params, metrics


def test_what_is_not_known_or_has_not_happened_makes_no_chart() -> None:
    spy = Spy()
    target = Loggers([spy])
    target.row(SavingsLedger(full_steps=4, steps=4), step=3)
    target.row(SavingsLedger(full_steps=4, steps=5, predicted_steps=1, skill=0.25), step=3)
    target.outcome(HybridConfig(), SavingsLedger(full_steps=4, steps=4), RunLog(), step=3)
    assert spy.rows[0] == {"steps": 4.0}
    assert spy.rows[1] == {
        "steps": 5.0, "predicted_steps": 1.0, "skill": 0.25,
        "saved_steps_fraction": pytest.approx(0.2),
    }  # fmt: skip
    assert spy.rows[2] == dict.fromkeys(RESULT, 0.0) | {"full_steps": 4.0}


def test_tensorboard_gets_a_text_and_no_chart_of_a_constant() -> None:
    class TensorBoardLogger(Spy):
        experiment: Any

    class Writer:
        def add_text(self, tag: str, text: str) -> None:
            texts[tag] = text

    texts: dict[str, str] = {}
    logger = TensorBoardLogger()
    logger.experiment = Writer()
    ledger = SavingsLedger(full_steps=4, steps=5, predicted_steps=1)
    ledger.record(3, "something happened")
    Loggers([logger]).outcome(HybridConfig(), ledger, RunLog(), 3)
    params, metrics = logger.given
    assert params["hybrid_predict/speedup"] == "1.5" and metrics == {}
    assert not [k for k, v in params.items() if v == "None"]
    text = texts["hybrid_predict"]
    assert text.startswith("**HybridPredict:** 4 full + 1 predicted = 5 steps, 20 % fewer")
    assert "| something happened | 3 | 1 |" in text and "One run cannot show" in text


@pytest.mark.parametrize("mode", [{}, {"shadow": True}], ids=str)
def test_mlflow_gets_metrics_tags_parameters_and_artifacts(
    tmp_path: Path, mode: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = MLFlowLogger(
        tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=str(tmp_path / "files")
    )
    calls: list[Any] = []
    send = type(logger.experiment).log_batch

    def count(self: Any, run_id: str, metrics: Any = (), **kwargs: Any) -> Any:
        if any(m.key == "hybrid_predict/steps" for m in metrics):
            calls.append(threading.current_thread() is threading.main_thread())
        return send(self, run_id, metrics=metrics, **kwargs)

    monkeypatch.setattr(type(logger.experiment), "log_batch", count)
    callback = Recorded(**mode)
    fit([callback], max_steps=60, logger=logger, log_every_n_steps=10)
    client, run_id = logger.experiment, logger.run_id
    full_steps = callback.ledger.full_steps
    rows = sorted({*range(9, full_steps, 10), full_steps - 1})
    assert calls == [False] * len(rows)
    run = client.get_run(run_id)
    history = client.get_metric_history(run_id, "hybrid_predict/steps")
    assert [m.step for m in history] == rows
    known = {plain(name) for name in run.data.metrics}
    assert client.get_metric_history(run_id, "hybrid_predict_end/full_steps")[0].step == 0
    assert known >= RESULT | ({"steps", "overhead_fraction"} if mode else COURSE)
    assert "phase" not in known
    assert run.data.tags["hybrid_predict.phase"] == callback.records[-1].phase.value
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith(f"**HybridPredict:** {callback.ledger}.")
    assert "| speedup | 1.5 |" in note
    assert run.data.params["hybrid_predict/warmup_steps"] == "0.05"
    assert run.data.tags["hybrid_predict.mode"] == ("shadow" if mode else "active")
    assert run.data.tags["hybrid_predict.full_steps"] == str(callback.ledger.full_steps)
    names = {f.path for f in client.list_artifacts(run_id, "hybrid_predict")}
    assert names == {"hybrid_predict/ledger.json", "hybrid_predict/run.png"}
    text = Path(client.download_artifacts(run_id, "hybrid_predict/ledger.json")).read_text()
    assert SavingsLedger.from_json(text).full_steps == json.loads(text)["full_steps"]


def test_a_server_that_is_down_for_a_while_costs_what_was_sent_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = MLFlowLogger(
        tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=str(tmp_path / "files")
    )
    send, tried = type(logger.experiment).log_batch, []

    def down(self: Any, run_id: str, metrics: Any = (), **kwargs: Any) -> Any:
        if any(m.key.startswith("hybrid_predict/") for m in metrics):
            tried.append(threading.current_thread().name)
            if len(tried) < 3:
                raise ConnectionError("no route to host")
        return send(self, run_id, metrics=metrics, **kwargs)

    monkeypatch.setattr(type(logger.experiment), "log_batch", down)
    callback = Ungated(max_overhead=100)
    net = Net(nan_at=AtPredicted(callback))
    fit([callback], net, max_steps=60, logger=logger, log_every_n_steps=10)
    client, run_id = logger.experiment, logger.run_id
    history = client.get_metric_history(run_id, "hybrid_predict/steps")
    full_steps = callback.ledger.full_steps
    steps = sorted({*range(9, full_steps, 10), full_steps - 1})
    assert [m.step for m in history] == steps[2:]
    assert set(tried) == {"hybrid_predict-mlflow"}
    assert caplog.text.count("could not record the run in MLFlowLogger") == 1
    assert "MLFlowLogger: 2 calls failed" in caplog.text
    (event,) = callback.ledger.events
    assert "predicted steps were undone" in event["reason"]
    tag = client.get_run(run_id).data.tags["hybrid_predict.event.0"]
    assert tag == f"full step {event['step']}: {event['reason']}"
    assert "hybrid_predict-mlflow" not in [thread.name for thread in threading.enumerate()]


def test_a_second_fit_into_the_same_run_is_recorded(tmp_path: Path) -> None:
    logger = MLFlowLogger(
        tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=str(tmp_path / "files")
    )
    for steps in (20, 30):
        fit([Ungated()], max_steps=steps, logger=logger)
        tags = logger.experiment.get_run(logger.run_id).data.tags
        assert f"= {steps} steps" in tags[NOTE]
    assert tags["hybrid_predict.steps"] == "30"
    logger.experiment.set_tag(logger.run_id, NOTE, "the user's own")
    fit([Ungated()], max_steps=20, logger=logger)
    assert logger.experiment.get_run(logger.run_id).data.tags[NOTE] == "the user's own"


@pytest.mark.parametrize("call", ["log_hyperparams", "log_metrics"])
def test_a_logger_that_fails_costs_a_warning_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """Whatever fails, at the end or before, the rest of the run is recorded."""

    class Broken(CSVLogger):
        pass

    def fail(self: Any, metrics: Any = None, step: Any = None) -> None:
        if metrics and any("hybrid_predict" in name for name in metrics):
            failed.append(step)
            raise ConnectionError("the server is gone")

    failed: list[Any] = []
    setattr(Broken, call, fail)
    loggers = [Broken(tmp_path, "broken"), CSVLogger(tmp_path, "sound")]
    callback = Ungated(log_dir=str(tmp_path / "log"))
    trainer, _ = fit([callback], max_steps=20, logger=loggers, log_every_n_steps=5)
    assert trainer.global_step == 20 == callback.ledger.steps
    messages = [r.getMessage() for r in caplog.records]
    assert sum("could not record the run in Broken" in m and "is gone" in m for m in messages) == 1
    assert any(m.startswith(f"Broken: {len(failed)} calls failed") for m in messages)
    *rows, result = plugin_rows(loggers[1])
    assert (
        float(rows[-1]["steps"])
        == 20
        == float(result["full_steps"]) + float(result["predicted_steps"])
    )
    assert read_log(tmp_path / "log" / NAME).status == "finished"


def test_logging_every_zero_steps_is_off(tmp_path: Path) -> None:
    trainer, _ = fit([Ungated()], max_steps=20, logger=CSVLogger(tmp_path),
                     log_every_n_steps=0)  # fmt: skip
    assert trainer.global_step == 20


def test_the_last_full_step_is_logged_whatever_the_interval(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    callback = Ungated()
    fit([callback], max_steps=50, logger=logger, log_every_n_steps=15)
    *rows, result = plugin_rows(logger)
    assert [int(r["step"]) for r in rows] == [14, 29, callback.ledger.full_steps - 1]
    assert float(rows[-1]["steps"]) == 50
    assert float(result["full_steps"]) == callback.ledger.full_steps
