"""Logs the runs of an audit to MLflow: one parent run, and below it one run per arm and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARENT = "mlflow.parentRunId"
"""Tag by which MLflow nests a run below another."""


def tracking_uri(folder: Path) -> str:
    """Return the tracking URI of an output folder."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


class Tracking:
    """An MLflow experiment in an output folder, with a parent run, which later audits continue."""

    def __init__(self, folder: Path, experiment: str) -> None:
        from mlflow import MlflowClient

        self._uri = tracking_uri(folder)
        self._experiment = experiment
        client = self._client = MlflowClient(self._uri)
        known = client.get_experiment_by_name(experiment)
        place = (folder / "mlartifacts").resolve().as_uri()
        number = known.experiment_id if known else client.create_experiment(experiment, place)
        runs = client.search_runs([number], "attributes.run_name = 'audit'", max_results=1)
        run = runs[0] if runs else client.create_run(number, run_name="audit")
        self._parent = run.info.run_id
        client.update_run(self._parent, status="RUNNING")

    def logger(self, name: str) -> Any:
        """Return a logger for the Trainer of one run below the parent; the Trainer ends the run."""
        from lightning.pytorch.loggers import MLFlowLogger

        return MLFlowLogger(
            self._experiment, run_name=name, tracking_uri=self._uri, tags={PARENT: self._parent}
        )

    def log(self, metrics: Mapping[str, float | None], run: str | None = None) -> None:
        """Log metrics to a run, or to the parent run; None is logged as NaN."""
        for name, value in metrics.items():
            number = math.nan if value is None else value
            self._client.log_metric(run or self._parent, name, number)

    def finish(self, tags: Mapping[str, str], status: str) -> None:
        """Log tags to the parent run, and end it with a status of MLflow."""
        for name, text in tags.items():
            self._client.set_tag(self._parent, name, text)
        self._client.set_terminated(self._parent, status)
