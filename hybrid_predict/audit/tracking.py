"""The runs of an audit and its verdict in MLflow, in a database in the output folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_predict.audit.store import FinishedRun
from hybrid_predict.audit.verdict import AuditVerdict
from hybrid_predict.integrations.reporter import NOTE


def tracking_uri(folder: Path) -> str:
    """Return the tracking URI of an output folder."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


def mlflow_logger(folder: Path, experiment: str, name: str, **tags: str) -> Any:
    """Return Lightning's logger for a run of an experiment in an output folder."""
    from lightning.pytorch.loggers import MLFlowLogger

    place = (folder / "mlartifacts").resolve().as_uri()
    uri = tracking_uri(folder)
    return MLFlowLogger(experiment, name, uri, tags, artifact_location=place)


def log_run(logger: Any, run: FinishedRun) -> None:
    """Log what a run was and has measured, under names that no model's own values have."""
    names = ("arm", "seed", "speedup", "total_steps")
    chosen = {**{name: run[name] for name in names if run[name] is not None}, **run["changes"]}
    logger.log_hyperparams({f"audit/{name}": value for name, value in chosen.items()})
    measured = {f"audit/{name}": run[name] for name in ("metric", "full_steps", "seconds")}
    logger.log_metrics(_known(measured))


def log_verdict(
    folder: Path, experiment: str, verdict: AuditVerdict, summary: Mapping[str, Mapping[str, Any]]
) -> None:
    """Log the results as a run ``audit``, of which the newest counts."""
    note = f"**{verdict.headline}**\n\n{verdict.text}"
    tags = {"outcome": verdict.outcome.value, "conclusion": verdict.headline, NOTE: note}
    logger = mlflow_logger(folder, experiment, "audit", **tags)
    means = {f"metric/{arm.replace(',', '')}": s["metric"]["mean"] for arm, s in summary.items()}
    logger.log_metrics(_known({**means, "saving": verdict.saving}))
    logger.finalize("success")


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}
