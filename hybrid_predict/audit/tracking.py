"""Logs the runs of an audit to MLflow: one parent run, and below it one run per arm and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_predict.audit.store import FinishedRun
from hybrid_predict.audit.verdict import AuditVerdict
from hybrid_predict.integrations.reporter import NOTE

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

    def begin(self, logger: Any, run: FinishedRun) -> None:
        """Log what distinguishes a run, under names that no model's own hyperparameters have."""
        names = ("arm", "seed", "speedup", "total_steps")
        chosen = {name: run[name] for name in names if run[name] is not None}
        named = {f"audit/{name}": value for name, value in {**chosen, **run["changes"]}.items()}
        logger.log_hyperparams(named)

    def end(self, logger: Any, run: FinishedRun) -> None:
        """Log what a finished run has measured."""
        for name in ("metric", "full_steps", "seconds"):
            self._log(logger.run_id, f"audit/{name}", run[name])

    def finish(
        self, verdict: AuditVerdict, summary: Mapping[str, Mapping[str, Any]], status: str
    ) -> None:
        """Log the results to the parent run, and end it with a status of MLflow."""
        for arm, means in summary.items():
            self._log(self._parent, f"metric/{arm.replace(',', '')}", means["metric"]["mean"])
        self._log(self._parent, "saving", verdict.saving)
        note = f"**{verdict.headline}**\n\n{verdict.text}"
        tags = {"outcome": verdict.outcome.value, "conclusion": verdict.headline, NOTE: note}
        for name, text in tags.items():
            self._client.set_tag(self._parent, name, text)
        self._client.set_terminated(self._parent, status)

    def _log(self, run: str, name: str, value: float | None) -> None:
        self._client.log_metric(run, name, math.nan if value is None else value)
