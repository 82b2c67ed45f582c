"""Metrics, parameters and artifacts through the Trainer's own loggers, without waiting for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger
from lightning.pytorch.utilities import rank_zero_warn

from hybrid_predict.config import HybridConfig
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report import RunHistory
from hybrid_predict.report.figure import run_figure


def log_metrics(loggers: Sequence[Logger], metrics: Mapping[str, float], step: int) -> None:
    """Send one row of metrics to every logger; to MLflow asynchronously, in one call.

    Args:
        loggers: The Trainer's loggers.
        metrics: Numbers by name.
        step: Position on the loggers' x-axis.
    """
    for logger in loggers:
        if isinstance(logger, MLFlowLogger):
            from mlflow.entities import Metric

            now = int(time.time() * 1000)
            row = [Metric(name, float(value), now, step) for name, value in metrics.items()]
            logger.experiment.log_batch(run_id=logger.run_id, metrics=row, synchronous=False)
        else:
            logger.log_metrics(dict(metrics), step=step)


def log_summary(
    loggers: Sequence[Logger], config: HybridConfig, ledger: SavingsLedger, history: RunHistory
) -> None:
    """Record a finished run: configuration, ledger and, in MLflow, tags, ledger file and figure.

    Args:
        loggers: The Trainer's loggers.
        config: The run's configuration.
        ledger: What it cost and saved.
        history: Its course.
    """
    parameters = {f"hybrid_predict/{k}": str(v) for k, v in config.to_dict().items()}
    for logger in loggers:
        try:
            if isinstance(logger, MLFlowLogger):
                _log_mlflow(logger, parameters, _tags(config, ledger), ledger, history)
            else:
                logger.log_hyperparams(parameters)
        except Exception as error:  # whatever a tracking server does, the training is done
            name = type(logger).__name__
            rank_zero_warn(f"hybrid_predict could not record the run in {name}: {error!r}.")


def _log_mlflow(
    logger: MLFlowLogger,
    parameters: Mapping[str, str],
    tags: Mapping[str, Any],
    ledger: SavingsLedger,
    history: RunHistory,
) -> None:
    from mlflow.entities import Param

    client, run = logger.experiment, logger.run_id
    known = client.get_run(run).data.params  # MLflow refuses to change one
    new = [Param(k, v) for k, v in parameters.items() if k not in known]
    client.log_batch(run_id=run, params=new)
    for name, value in tags.items():
        client.set_tag(run, f"hybrid_predict.{name}", value)
    client.log_dict(run, ledger.summary(), "hybrid_predict/ledger.json")
    client.log_figure(run, run_figure(history), "hybrid_predict/run.png")


def _tags(config: HybridConfig, ledger: SavingsLedger) -> dict[str, Any]:
    return {
        "mode": "disabled" if not config.enabled else "shadow" if config.shadow else "active",
        "speedup": f"{config.speedup:g}",
        "full_steps": ledger.full_steps,
        "equivalent_steps": ledger.equivalent_steps,
        "saved_steps_fraction": f"{ledger.saved_steps_fraction:.4f}",
    }
