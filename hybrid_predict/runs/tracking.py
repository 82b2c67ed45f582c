"""MLflow for a family of runs: one parent run, and below it one run per arm and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger

PARENT = "mlflow.parentRunId"
"""Tag by which MLflow nests a run below another."""

KEY = "hybrid_predict.key"
"""Tag by which a parent run is found again."""


def tracking_uri(folder: Path) -> str:
    """Where MLflow finds the runs of an output folder."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


class Tracking:
    """An MLflow experiment in an output folder, with a parent run for all that is trained there.

    Args:
        folder: Where database and artifacts are; exists.
        experiment: Name of the experiment.
        name: Name of the parent run.
        params: The parent run's parameters.
        key: Continue the parent run that has this key, if there is one; None starts a new one.
    """

    def __init__(
        self,
        folder: Path,
        experiment: str,
        name: str,
        params: Mapping[str, Any],
        key: str | None = None,
    ) -> None:
        from mlflow import MlflowClient

        self.uri = tracking_uri(folder)
        self._experiment = experiment
        self._logged = False
        self._client = MlflowClient(self.uri)
        found = self._client.get_experiment_by_name(experiment)
        place = (folder / "mlartifacts").resolve().as_uri()
        number = (
            found.experiment_id
            if found
            else self._client.create_experiment(experiment, artifact_location=place)
        )
        earlier = (
            self._client.search_runs([number], f"tags.`{KEY}` = '{key}'", max_results=1)
            if key
            else []
        )
        if earlier:
            self._parent = earlier[0].info.run_id
            self._client.update_run(self._parent, status="RUNNING")
        else:
            tags = {KEY: key} if key else None
            run = self._client.create_run(number, run_name=name, tags=tags)
            self._parent = run.info.run_id
            for parameter, value in params.items():
                self._client.log_param(self._parent, parameter, value)

    def logger(self, name: str, tags: Mapping[str, str]) -> MLFlowLogger:
        """The Trainer's logger for one run below the parent."""
        from lightning.pytorch.loggers import MLFlowLogger

        self._logged = True
        return MLFlowLogger(
            self._experiment,
            run_name=name,
            tracking_uri=self.uri,
            tags={PARENT: self._parent, **tags},
            synchronous=False,
        )

    def finish_run(self, logger: MLFlowLogger, metrics: Mapping[str, float | None]) -> None:
        """Add what is known only after training to one run."""
        for name, value in metrics.items():
            self._client.log_metric(str(logger.run_id), name, math.nan if value is None else value)

    def finish(
        self,
        metrics: Mapping[str, float | None],
        tags: Mapping[str, str],
        files: Sequence[Path],
        status: str = "FINISHED",
    ) -> None:
        """Add the outcome to the parent run and end it.

        Args:
            metrics: Summary numbers by name; None is logged as not a number.
            tags: Summary texts by name.
            files: Become the run's artifacts.
            status: MLflow's word for how it ended.
        """
        for name, value in metrics.items():
            self._client.log_metric(self._parent, name, math.nan if value is None else value)
        for name, text in tags.items():
            self._client.set_tag(self._parent, name, text)
        for path in files:
            self._client.log_artifact(self._parent, str(path))
        if self._logged:
            import mlflow

            # Asks the store that the loggers have made MLflow's current one; without them it would
            # make a database in the current directory.
            mlflow.flush_async_logging()
        self._client.set_terminated(self._parent, status)
