"""Logs metrics, parameters and artifacts to the Trainer's loggers, without waiting for them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.config import HybridConfig
from hybrid_predict.integrations.outbox import Outbox
from hybrid_predict.report.figure import run_figure
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.run_page import ONE_RUN

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as the description of a run."""

_OWN = "**HybridPredict:**"

_COURSE = (
    "steps", "predicted_steps", "undone_steps", "saved_steps_fraction", "skill",
    "overhead_fraction", "estimated_seconds_saved",
)  # fmt: skip
"""Fields of the ledger that are logged during the run; the loggers' x-axis is full steps."""

_RESULT = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Fields of the ledger that are logged once at the end, for tables and for sorting."""


@final
class Recorder:
    """Records one run in the Trainer's loggers; calls to MLflow go through an outbox.

    Args:
        loggers: The loggers of a Trainer, with existing experiments.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._loggers = loggers
        self._outboxes = {id(x): Outbox("MLflow") for x in loggers if _is_a(x, "MLFlowLogger")}
        self._events = 0

    def log_row(self, ledger: SavingsLedger, step: int) -> None:
        """Log the numbers of a ledger to every logger, except zeros, which make empty charts.

        Args:
            ledger: The run's ledger.
            step: Position on the loggers' x-axis.
        """
        self._log_metrics({n: getattr(ledger, n) or None for n in _COURSE}, step)

    def log_result(self, ledger: SavingsLedger, step: int) -> None:
        """Log the final counts, in a metric group of their own.

        The arguments are those of :meth:`log_row`. MLflow gets step 0, for which it draws a bar.
        """
        counts: dict[str, float | None] = {name: getattr(ledger, name) for name in _RESULT}
        counts["events"] = len(ledger.events)
        self._log_metrics(counts, step, group="hybrid_predict_end", mlflow_step=0)

    def log_phase(self, phase: str) -> None:
        """Set the current phase as a tag in MLflow."""
        for logger in self._loggers:
            if _is_a(logger, "MLFlowLogger"):
                client, run = logger.experiment, logger.run_id
                tag = partial(client.set_tag, run, "hybrid_predict.phase", phase)
                self._outboxes[id(logger)].send(tag)

    def _log_metrics(
        self,
        numbers: Mapping[str, float | None],
        step: int,
        group: str = "hybrid_predict",
        mlflow_step: int | None = None,
    ) -> None:
        """Log a row of metrics to every logger; MLflow gets it in one call."""
        metrics = {f"{group}/{k}": float(v) for k, v in numbers.items() if v is not None}
        at = step if mlflow_step is None else mlflow_step
        for logger in self._loggers:
            if _is_a(logger, "MLFlowLogger"):
                from mlflow.entities import Metric

                now = int(time.time() * 1000)
                row = [Metric(name, value, now, at) for name, value in metrics.items()]
                client, run = logger.experiment, logger.run_id
                self._outboxes[id(logger)].send(partial(client.log_batch, run, metrics=row))
            else:
                logger.log_metrics(dict(metrics), step=step)

    def log_events(self, ledger: SavingsLedger) -> None:
        """Set a tag in MLflow for each event since the last call."""
        new = ledger.events[self._events :]
        if not new:
            return
        self._events = len(ledger.events)
        for logger in self._loggers:
            if _is_a(logger, "MLFlowLogger"):
                client, run = logger.experiment, logger.run_id
                for k, event in enumerate(new, self._events - len(new)):
                    text = f"full step {event['step']}: {event['reason']}"
                    tag = partial(client.set_tag, run, f"hybrid_predict.event.{k}", text)
                    self._outboxes[id(logger)].send(tag)

    def log_summary(self, config: HybridConfig, ledger: SavingsLedger, history: RunHistory) -> None:
        """Record a finished run: parameters, and a description where the logger can show text.

        MLflow gets a description, tags, the ledger as a file and a figure; TensorBoard gets a text.

        Args:
            config: The run's configuration.
            ledger: The run's ledger.
            history: The run's history.
        """
        chosen = {k: v for k, v in config.to_dict().items() if v is not None}
        parameters = {f"hybrid_predict/{k}": str(v) for k, v in chosen.items()}
        text = _description(chosen, ledger)
        for logger in self._loggers:
            if _is_a(logger, "MLFlowLogger"):
                send = partial(
                    _log_mlflow,
                    logger,
                    parameters,
                    {**_tags(config, ledger), NOTE: text},
                    ledger,
                    history,
                )
                self._outboxes[id(logger)].send(send)
                continue
            try:
                if _is_a(logger, "TensorBoardLogger"):
                    logger.experiment.add_text("hybrid_predict", text)
                    # Without this argument, TensorBoard shows a chart of a constant.
                    logger.log_hyperparams(parameters, {})
                else:
                    logger.log_hyperparams(parameters)
            except Exception as error:  # the training is done; a logger must not fail it
                name = type(logger).__name__
                warning = f"hybrid_predict could not record the run in {name}: {error!r}."
                warnings.warn(warning, stacklevel=2)

    def close(self, timeout: float = 30.0) -> None:
        """Send what is queued, for at most ``timeout`` seconds, and end the threads."""
        for outbox in self._outboxes.values():
            outbox.close(timeout)


def _is_a(logger: Any, name: str) -> bool:
    """Whether a logger has this class name, in any Lightning package."""
    return any(cls.__name__ == name for cls in type(logger).__mro__)


def _description(chosen: Mapping[str, Any], ledger: SavingsLedger) -> str:
    """Describe the results of a run in Markdown."""
    lines = [f"{_OWN} {ledger}.", "", ONE_RUN]
    if ledger.events:
        lines += ["", "| event | full step | times |", "| --- | --- | --- |"]
        events = [(_cell(e["reason"]), e["step"], e["count"]) for e in ledger.events]
        lines += [f"| {reason} | {step} | {count} |" for reason, step, count in events]
    lines += ["", "| setting | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {_cell(value)} |" for name, value in chosen.items())])


def _cell(value: object) -> str:
    """Format a value for a cell of a Markdown table."""
    return " ".join(str(value).replace("|", "\\|").split())


def _log_mlflow(
    logger: Any,
    parameters: Mapping[str, str],
    tags: Mapping[str, Any],
    ledger: SavingsLedger,
    history: RunHistory,
) -> None:
    from mlflow.entities import Param

    client, run = logger.experiment, logger.run_id
    known = client.get_run(run).data
    # MLflow raises an error if a logged parameter changes.
    new = [Param(k, v) for k, v in parameters.items() if k not in known.params]
    client.log_batch(run_id=run, params=new)
    for name, value in tags.items():
        if name != NOTE or _OWN in known.tags.get(NOTE, _OWN):  # keep a note of the user
            client.set_tag(run, name, value)
    client.log_dict(run, ledger.summary(), "hybrid_predict/ledger.json")
    client.log_figure(run, run_figure(history), "hybrid_predict/run.png")


def _tags(config: HybridConfig, ledger: SavingsLedger) -> dict[str, Any]:
    tags = {
        "mode": "disabled" if not config.enabled else "shadow" if config.shadow else "active",
        "speedup": f"{config.compression:g}",
        "full_steps": ledger.full_steps,
        "steps": ledger.steps,
        "predicted_steps": ledger.predicted_steps,
        "saved_steps_fraction": f"{ledger.saved_steps_fraction:.4f}",
        "skill": "unknown" if ledger.skill is None else f"{ledger.skill:.3f}",
    }
    return {f"hybrid_predict.{name}": value for name, value in tags.items()}
