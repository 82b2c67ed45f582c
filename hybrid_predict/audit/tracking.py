"""The runs of an audit and its verdict in MLflow, in a database in the output folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hybrid_predict.audit.store import FinishedRun
from hybrid_predict.audit.verdict import AuditVerdict
from hybrid_predict.integrations.reporter import NOTE


def tracking_uri(folder: Path) -> str:
    """Return the tracking URI of an output folder."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


def mlflow_logger(folder: Path, experiment: str, name: str) -> Any:
    """Return Lightning's logger for a run of an experiment in an output folder."""
    from lightning.pytorch.loggers import MLFlowLogger

    place = (folder / "mlartifacts").resolve().as_uri()
    return MLFlowLogger(experiment, name, tracking_uri(folder), artifact_location=place)


def log_run(logger: Any, run: FinishedRun) -> None:
    """Log what a run was and has measured, under names that no model's own values have."""
    names = ("arm", "seed", "speedup", "total_steps")
    chosen = {**{name: run[name] for name in names if run[name] is not None}, **run["changes"]}
    logger.log_hyperparams({f"audit/{name}": value for name, value in chosen.items()})
    metric = math.nan if run["metric"] is None else run["metric"]
    measured = {"metric": metric, "full_steps": run["full_steps"], "seconds": run["seconds"]}
    logger.log_metrics({f"audit/{name}": value for name, value in measured.items()})


def log_verdict(folder: Path, experiment: str, verdict: AuditVerdict) -> None:
    """Describe the experiment by the verdict, in place of an earlier one."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri(folder))
    found = client.get_experiment_by_name(experiment)
    if found is not None:  # runs were recorded
        note = f"**{verdict.headline}**\n\n{verdict.text}"
        client.set_experiment_tag(found.experiment_id, NOTE, note)
        client.set_experiment_tag(found.experiment_id, "outcome", verdict.outcome.value)
