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
from hybrid_predict.report.run_page import ONE_RUN

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""

_OWN = "**HybridPredict:**"

_COURSE = (
    "steps", "predicted_steps", "undone_steps", "saved_steps_fraction", "skill",
    "overhead_fraction", "estimated_seconds_saved",
)  # fmt: skip
"""Of the ledger, logged while the run trains; full steps are the loggers' own axis."""

_RESULT = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Of the ledger, logged once at its end, for tables and for sorting."""


class Recorder:
    """Records one run in the Trainer's loggers; what goes to MLflow goes through an outbox.

    Args:
        loggers: The loggers of a Trainer, of whichever package; their experiments exist.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._loggers = loggers
        self._outboxes = {id(x): Outbox("MLflow") for x in loggers if _is_a(x, "MLFlowLogger")}
        self._events = 0

    def log_row(self, ledger: SavingsLedger, step: int) -> None:
        """Send the numbers of a ledger to every logger; what is still 0 would be an empty chart.

        Args:
            ledger: The run's ledger.
            step: Position on the loggers' x-axis.
        """
        self._log_metrics({n: getattr(ledger, n) or None for n in _COURSE}, step)

    def log_result(self, ledger: SavingsLedger, step: int) -> None:
        """Send what is known only when the run has ended, in a group of its own.

        Args are those of :meth:`log_row`. MLflow draws a bar of what has step 0 alone.
        """
        counts: dict[str, float | None] = {name: getattr(ledger, name) for name in _RESULT}
        counts["events"] = len(ledger.events)
        self._log_metrics(counts, step, group="hybrid_predict_end", mlflow_step=0)

    def log_phase(self, phase: str) -> None:
        """Tell MLflow the phase that has begun, as a tag."""
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
        """Send one row of metrics to every logger; to MLflow in one call."""
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
        """Tell MLflow of the ledger's events that are new since the last call, a tag for each."""
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
        """Record a finished run: configuration, and what came of it where there is room for text.

        MLflow gets a description, tags, the ledger as a file and a figure; TensorBoard a text.

        Args:
            config: The run's configuration.
            ledger: What it cost and saved.
            history: Its course.
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
                    # Without metrics it would add a chart of a constant.
                    logger.log_hyperparams(parameters, {})
                else:
                    logger.log_hyperparams(parameters)
            except Exception as error:  # whatever a logger does, the training is done
                name = type(logger).__name__
                warning = f"hybrid_predict could not record the run in {name}: {error!r}."
                warnings.warn(warning, stacklevel=2)

    def close(self, timeout: float = 30.0) -> None:
        """Send what waits, for so many seconds at most, and end the threads."""
        for outbox in self._outboxes.values():
            outbox.close(timeout)


def _is_a(logger: Any, name: str) -> bool:
    """Whether it is the logger of this name of any Lightning package."""
    return any(cls.__name__ == name for cls in type(logger).__mro__)


def _description(chosen: Mapping[str, Any], ledger: SavingsLedger) -> str:
    """What came of a run, as Markdown."""
    lines = [f"{_OWN} {ledger}.", "", ONE_RUN]
    if ledger.events:
        lines += ["", "| event | full step | times |", "| --- | --- | --- |"]
        events = [(_cell(e["reason"]), e["step"], e["count"]) for e in ledger.events]
        lines += [f"| {reason} | {step} | {count} |" for reason, step, count in events]
    lines += ["", "| setting | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {_cell(value)} |" for name, value in chosen.items())])


def _cell(value: object) -> str:
    """A value in a table of Markdown."""
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
    # MLflow refuses to change a parameter.
    new = [Param(k, v) for k, v in parameters.items() if k not in known.params]
    client.log_batch(run_id=run, params=new)
    for name, value in tags.items():
        if name != NOTE or _OWN in known.tags.get(NOTE, _OWN):  # the user's own note stays
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
