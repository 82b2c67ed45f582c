"""Metrics reach every logger of the Trainer; MLflow gets the finished run's artifacts too."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger
from lightning_models import Net, Ungated, fit

from hybrid_predict import HybridPredict, SavingsLedger
from hybrid_predict.integrations.reporter import NOTE
from hybrid_predict.runs.log import find_logs, read_log

COURSE = {
    "steps", "full_steps", "corrected_steps", "predicted_steps", "saved_steps_fraction",
    "overhead_fraction", "estimated_seconds_saved",
}  # fmt: skip


def plain(name: str) -> str:
    """A name without its group."""
    return name.split("/")[-1].removeprefix("hybrid_predict.")


def plugin_rows(logger: CSVLogger) -> list[dict[str, str]]:
    """The rows of the plug-in."""
    logger.save()
    with open(Path(logger.log_dir, "metrics.csv")) as file:
        rows = list(csv.DictReader(file))
    named = [{plain(k): v for k, v in r.items() if v} for r in rows]
    return [r for r in named if "steps" in r]


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], MLFlowLogger]:
    """Makes loggers of runs in one database."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri, files = f"sqlite:///{folder}/mlflow.db", str(folder / "files")
    return lambda: MLFlowLogger(tracking_uri=uri, artifact_location=files)


def test_csv_logger_gets_a_row_per_logging_interval_and_one_at_the_end(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    callback = Ungated()
    fit([callback], max_steps=60, logger=logger, log_every_n_steps=15)
    rows = plugin_rows(logger)
    assert [int(r["step"]) for r in rows] == [14, 29, 39]
    assert rows[-1].keys() >= COURSE
    assert "skill" not in rows[0]  # nobody knows it yet
    for name in ("full_steps", "steps", "corrected_steps", "predicted_steps"):
        assert float(rows[-1][name]) == getattr(callback.ledger, name)
    assert "hybrid_predict/speedup" in Path(logger.log_dir, "hparams.yaml").read_text()


def test_mlflow_gets_metrics_tags_parameters_and_artifacts(
    mlflow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that does not take the plug-in's metrics for a while costs what was sent then."""
    logger = mlflow()
    tried: list[int] = []
    send = type(logger.experiment).log_batch

    def down(self: Any, run_id: str, metrics: Any = (), **kwargs: Any) -> Any:
        if any(m.key.startswith("hybrid_predict/") for m in metrics):
            tried.append(metrics[0].step)
            if len(tried) < 3:
                raise ConnectionError("no route to host")
        return send(self, run_id, metrics=metrics, **kwargs)

    monkeypatch.setattr(type(logger.experiment), "log_batch", down)
    callback = Ungated()
    fit([callback], max_steps=60, logger=logger, log_every_n_steps=10)
    client, run_id, ledger = logger.experiment, logger.run_id, callback.ledger
    positions = sorted({*range(9, ledger.full_steps, 10), ledger.full_steps - 1})
    history = client.get_metric_history(run_id, "hybrid_predict/steps")
    assert tried == positions
    assert [metric.step for metric in history] == positions[2:]
    assert caplog.text.count("could not record the run in MLFlowLogger") == 1
    run = client.get_run(run_id)
    assert {plain(name) for name in run.data.metrics} >= COURSE
    tags = run.data.tags
    assert tags["hybrid_predict.status"] == "finished"
    assert run.data.tags[NOTE].startswith(f"**HybridPredict:** {ledger}.")
    assert run.data.params["hybrid_predict/warmup_steps"] == "0.05"
    assert run.data.params["hybrid_predict/skip_data"] == "auto"
    text = Path(client.download_artifacts(run_id, "hybrid_predict/ledger.json")).read_text()
    assert SavingsLedger.from_dict(json.loads(text)) == ledger
    command = f"hybrid-predict report $(mlflow artifacts download -r {run_id} -a hybrid_predict)"
    assert tags["hybrid_predict.report"] == command and command in tags[NOTE]
    log = read_log(find_logs(client.download_artifacts(run_id, "hybrid_predict"))[0])
    assert (log.rows, log.status) == (callback.history.rows, "finished")


@pytest.mark.parametrize(("every", "kind"), [(8, HybridPredict), (5, HybridPredict), (8, Ungated)])
def test_the_last_row_has_the_validation_that_follows_the_last_full_step(
    mlflow: Any, every: int, kind: Any
) -> None:
    """The last full step of fewer is no multiple of the interval, and is validated too."""
    logger = mlflow()
    callback = kind(speedup=1 if kind is HybridPredict else 1.5)
    options: Any = {"val_check_interval": 8, "log_every_n_steps": every}
    fit([callback], Rising(), max_steps=32, logger=logger, **options)
    metrics = logger.experiment.get_run(logger.run_id).data.metrics
    ledger = callback.ledger
    assert ledger.best is not None
    assert (ledger.best["step"], ledger.best["full_steps"]) == (32, ledger.full_steps)
    assert (ledger.full_steps % 8 > 0) == (kind is Ungated)
    assert metrics["hybrid_predict/best.value"] == ledger.best["value"]
    assert "hybrid_predict/saved_steps_fraction" in metrics  # every run of a list has one


class Rising(Net):
    """Gets better with every validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", -float(self.global_step))


class Broken(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.batches == 7:
            raise ValueError("no such image")
        return super().training_step(batch, batch_idx)


def test_a_run_that_failed_has_its_parameters_and_a_status_in_mlflow(mlflow: Any) -> None:
    logger = mlflow()
    with pytest.raises(ValueError, match="no such image"):
        fit([Ungated()], Broken(), max_steps=60, logger=logger)
    run = logger.experiment.get_run(logger.run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["hybrid_predict.status"] == "failed: ValueError: no such image"
    assert run.data.params["hybrid_predict/speedup"] == "1.5"
