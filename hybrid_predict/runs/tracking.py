"""Logs runs to MLflow: one parent run, and below it one run per arm and seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger

PARENT = "mlflow.parentRunId"
"""Tag by which MLflow nests a run below another."""

KEY = "hybrid_predict.key"
"""Tag that identifies a parent run."""

STATUS = "hybrid_predict.status"
"""Tag that says how a run ended: ``finished``, ``stopped``, ``failed: ...`` or ``killed``."""


def tracking_uri(folder: Path) -> str:
    """Return the tracking URI of an output folder."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


class Tracking:
    """An MLflow experiment in an output folder, with a parent run for all runs trained there.

    A parent run with the same ``key`` is continued; runs below it that a killed process left as
    running are marked. No other process may be tracking runs of that key.
    """

    def __init__(
        self, folder: Path, experiment: str, name: str, params: Mapping[str, Any], key: str
    ) -> None:
        from mlflow import MlflowClient

        self.uri = tracking_uri(folder)
        self._experiment = experiment
        self._logged = False
        client = self._client = MlflowClient(self.uri)
        known = client.get_experiment_by_name(experiment)
        place = (folder / "mlartifacts").resolve().as_uri()
        number = known.experiment_id if known else client.create_experiment(experiment, place)
        if runs := client.search_runs([number], f"tags.`{KEY}` = '{key}'", max_results=1):
            self._parent = runs[0].info.run_id
            client.update_run(self._parent, status="RUNNING")
            left = f"tags.`{PARENT}` = '{self._parent}' and attributes.status = 'RUNNING'"
            for run in client.search_runs([number], left):
                self._end(run.info.run_id, "KILLED", "killed")
            return
        self._parent = client.create_run(number, run_name=name, tags={KEY: key}).info.run_id
        for parameter, value in params.items():
            client.log_param(self._parent, parameter, value)

    @contextmanager
    def run(self, name: str, tags: Mapping[str, str]) -> Iterator[MLFlowLogger]:
        """Give a logger for the Trainer of one run below the parent.

        An error inside the block marks the run as interrupted by the user, or as failed.
        """
        from lightning.pytorch.loggers import MLFlowLogger

        self._logged = True
        tags = {PARENT: self._parent, **tags}
        logger = MLFlowLogger(
            self._experiment, run_name=name, tracking_uri=self.uri, tags=tags, synchronous=False
        )
        try:
            yield logger
        except KeyboardInterrupt:
            self._end(str(logger.run_id), "KILLED", "stopped")
            raise
        except BaseException as error:
            self._end(str(logger.run_id), "FAILED", f"failed: {type(error).__name__}")
            raise

    def log_metrics(
        self, metrics: Mapping[str, float | None], logger: MLFlowLogger | None = None
    ) -> None:
        """Log metrics to the run of a logger, or to the parent run; None is logged as NaN."""
        run = self._parent if logger is None else str(logger.run_id)
        for name, value in metrics.items():
            self._client.log_metric(run, name, math.nan if value is None else value)

    def finish(self, tags: Mapping[str, str], files: Sequence[Path], status: str) -> None:
        """Log tags and files to the parent run, and end it with a status of MLflow."""
        for name, text in tags.items():
            self._client.set_tag(self._parent, name, text)
        for path in files:
            self._client.log_artifact(self._parent, str(path))
        if self._logged:
            import mlflow

            # Without a logger this would create a database in the current directory.
            mlflow.flush_async_logging()
        self._client.set_terminated(self._parent, status)

    def _end(self, run: str, status: str, why: str) -> None:
        self._client.set_tag(run, STATUS, why)
        self._client.set_terminated(run, status)
