"""Metrics, parameters and artifacts through the Trainer's own loggers, without waiting for them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.config import HybridConfig
from hybrid_predict.integrations.outbox import Outbox
from hybrid_predict.report.figure import run_figure
from hybrid_predict.report.history import RunHistory

_NUMBERS = (
    "full_steps", "steps", "corrected_steps", "predicted_steps", "undone_steps",
    "saved_steps_fraction", "skill", "overhead_fraction", "estimated_seconds_saved",
)  # fmt: skip
"""Of the ledger, logged as metrics where they are known."""


class Recorder:
    """Records one run in the Trainer's loggers; what goes to MLflow goes through an outbox.

    Args:
        loggers: The loggers of a Trainer, of whichever package; their experiments exist.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._loggers = loggers
        self._outboxes = {id(x): Outbox("MLflow") for x in loggers if _is_mlflow(x)}
        self._events = 0

    def log_row(self, ledger: SavingsLedger, phase: int, step: int) -> None:
        """Send the numbers of a ledger to every logger.

        Args:
            ledger: The run's ledger.
            phase: Position of the phase of the last full step among the phases.
            step: Position on the loggers' x-axis.
        """
        numbers = {"phase": phase, **{name: getattr(ledger, name) for name in _NUMBERS}}
        known = {f"hybrid_predict/{k}": float(v) for k, v in numbers.items() if v is not None}
        self._log_metrics(known, step)

    def _log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Send one row of metrics to every logger; to MLflow in one call."""
        for logger in self._loggers:
            if _is_mlflow(logger):
                from mlflow.entities import Metric

                now = int(time.time() * 1000)
                row = [Metric(name, float(value), now, step) for name, value in metrics.items()]
                client, run = logger.experiment, logger.run_id
                self._outboxes[id(logger)].send(partial(client.log_batch, run, metrics=row))
            else:
                logger.log_metrics(dict(metrics), step=step)

    def log_events(self, ledger: SavingsLedger, step: int) -> None:
        """Tell the loggers of the ledger's events that are new since the last call.

        MLflow gets a tag per event with its reason, every logger their number as a metric.

        Args:
            ledger: The run's ledger.
            step: Position on the loggers' x-axis.
        """
        new = ledger.events[self._events :]
        if not new:
            return
        self._events = len(ledger.events)
        for logger in self._loggers:
            if _is_mlflow(logger):
                client, run = logger.experiment, logger.run_id
                for k, event in enumerate(new, self._events - len(new)):
                    text = f"full step {event['step']}: {event['reason']}"
                    tag = partial(client.set_tag, run, f"hybrid_predict.event.{k}", text)
                    self._outboxes[id(logger)].send(tag)
        self._log_metrics({"hybrid_predict/events": float(self._events)}, step)

    def log_summary(self, config: HybridConfig, ledger: SavingsLedger, history: RunHistory) -> None:
        """Record a finished run: configuration, ledger; in MLflow tags, ledger file and figure.

        Args:
            config: The run's configuration.
            ledger: What it cost and saved.
            history: Its course.
        """
        parameters = {f"hybrid_predict/{k}": str(v) for k, v in config.to_dict().items()}
        for logger in self._loggers:
            if _is_mlflow(logger):
                send = partial(
                    _log_mlflow, logger, parameters, _tags(config, ledger), ledger, history
                )
                self._outboxes[id(logger)].send(send)
                continue
            try:
                logger.log_hyperparams(parameters)
            except Exception as error:  # whatever a logger does, the training is done
                name = type(logger).__name__
                text = f"hybrid_predict could not record the run in {name}: {error!r}."
                warnings.warn(text, stacklevel=2)

    def close(self, timeout: float = 30.0) -> None:
        """Send what waits, for so many seconds at most, and end the threads."""
        for outbox in self._outboxes.values():
            outbox.close(timeout)


def _is_mlflow(logger: Any) -> bool:
    """Whether it is the MLFlowLogger of any Lightning package."""
    return any(cls.__name__ == "MLFlowLogger" for cls in type(logger).__mro__)


def _log_mlflow(
    logger: Any,
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
        "speedup": f"{config.compression:g}",
        "full_steps": ledger.full_steps,
        "steps": ledger.steps,
        "predicted_steps": ledger.predicted_steps,
        "saved_steps_fraction": f"{ledger.saved_steps_fraction:.4f}",
    }
