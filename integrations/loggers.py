"""Records a run in the loggers of a Trainer, in the same calls as the user's own metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import raise_interrupt
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.ranks import processes
from hybrid_predict.runs.facts import ONE_RUN
from hybrid_predict.runs.figures import run_figure
from hybrid_predict.runs.log import RunLog

METRICS = (
    "steps",
    "predicted_steps",
    "undone_steps",
    "saved_steps_fraction",
    "skill",
    "mean_length",
    "predicted_per_full_step",
    "overhead_fraction",
    "estimated_seconds_saved",
)
"""Numbers of the ledger that are logged while the run trains, over full steps."""

KIND_METRICS = ("length", "fitted", "error", "persistence", "advance")
"""Numbers of ``ledger.skills`` that are logged for every kind of parameters."""

RESULTS = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Counts of the ledger that are logged once, at the end of the run."""

FACTS = ("full_steps", "steps", "predicted_steps", "saved_steps_fraction", "skill")
"""Values of the ledger by which tables of runs are filtered and sorted."""

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""

_HEADING = "**HybridPredict:**"
"""Beginning of a description that the plug-in has written, and not the user."""

logger = processes.rank_zero_logger(__name__)


def numbers(ledger: SavingsLedger) -> dict[str, float]:
    """Return the numbers of a ledger that are known and not 0, by the names that loggers get."""
    known = {name: getattr(ledger, name) for name in METRICS}
    return {f"hybrid_predict/{name}": float(value) for name, value in known.items() if value}


@final
class Loggers:
    """Records one run in all loggers of a Trainer.

    Texts are tags in MLflow, and in the summary of a run in W&B. A logger that raises causes one
    warning, and is called again; training and the other loggers continue.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._loggers = [(each, _kind(each)) for each in loggers]
        self._failed: set[int] = set()
        self._events = 0

    def begin(self, config: HybridConfig) -> None:
        """Log the fields of the configuration that are set, under names that no user has."""
        plain = (bool, int, float)
        chosen = {
            f"hybrid_predict/{name}": value if isinstance(value, plain) else str(value)
            for name, value in config.to_dict().items()
            if value is not None
        }

        def log(target: Any, kind: str) -> None:
            if kind == "MLFlowLogger":  # tags of an earlier training in the same run
                for tag in target.experiment.get_run(target.run_id).data.tags:
                    if tag.startswith("hybrid_predict."):
                        target.experiment.delete_tag(target.run_id, tag)
            # Without metrics TensorBoard would add a chart of a constant.
            target.log_hyperparams(chosen, *([{}] if kind == "TensorBoardLogger" else []))

        self._call(log)

    def row(self, ledger: SavingsLedger, step: int) -> None:
        """Log the numbers that are known and not 0, at a position of the loggers' x-axis."""
        row = numbers(ledger)
        for kind, skill in ledger.skills.items():
            known = {name: skill[name] for name in KIND_METRICS if name in skill}
            row |= {f"hybrid_predict/{kind}.{name}": float(x) for name, x in known.items()}
        self._metrics(row, step)

    def text(self, name: str, text: str | float) -> None:
        """Log a text, or a number to filter runs by, in loggers that accept one."""

        def log(target: Any, kind: str) -> None:
            if kind == "MLFlowLogger":
                shown = f"{text:.4g}" if isinstance(text, float) else text
                target.experiment.set_tag(target.run_id, f"hybrid_predict.{name}", shown)
            elif kind == "WandbLogger":
                target.experiment.summary[f"hybrid_predict/{name}"] = text

        self._call(log)

    def events(self, ledger: SavingsLedger) -> None:
        """Log the events that are new since the last call."""
        for number, event in enumerate(ledger.events[self._events :], self._events):
            self.text(f"event.{number}", f"full step {event['step']}: {event['reason']}")
        self._events = len(ledger.events)

    def outcome(self, config: HybridConfig, ledger: SavingsLedger, log: RunLog, step: int) -> None:
        """Log the result of a finished run, at the position of its last full step."""
        results = {name: float(getattr(ledger, name)) for name in RESULTS}
        results["events"] = float(len(ledger.events))
        self._metrics({f"hybrid_predict_end/{name}": n for name, n in results.items()}, step)
        self.text("mode", "shadow" if config.shadow else "active")
        self.text("speedup", "auto" if config.paced else config.compression)
        for name in FACTS:
            if (fact := getattr(ledger, name)) is not None:
                self.text(name, fact)
        description = f"{_HEADING} {ledger}.\n\n{ONE_RUN}"

        def describe(target: Any, kind: str) -> None:
            if kind == "MLFlowLogger":
                client = target.experiment
                run = target.run_id
                if _HEADING in client.get_run(run).data.tags.get(NOTE, _HEADING):
                    client.set_tag(run, NOTE, description)
                client.log_dict(run, ledger.summary(), "hybrid_predict/ledger.json")
                client.log_figure(run, run_figure(log), "hybrid_predict/run.png")
            elif kind == "WandbLogger":
                if _HEADING in (target.experiment.notes or _HEADING):  # else they are the user's
                    target.experiment.notes = description
            elif kind == "TensorBoardLogger":
                target.experiment.add_text("hybrid_predict", description)

        self._call(describe)

    def _metrics(self, metrics: dict[str, float], step: int) -> None:
        self._call(lambda target, kind: target.log_metrics(dict(metrics), step=step))

    def _call(self, log: Callable[[Any, str], None]) -> None:
        for target, kind in self._loggers:
            try:
                log(target, kind)
            except Exception as error:
                raise_interrupt(error)
                if id(target) not in self._failed:
                    text = "hybrid_predict could not record the run in %s: %r. Training continues."
                    logger.warning(text, type(target).__name__, error)
                self._failed.add(id(target))


def _kind(target: Any) -> str:
    """Return the class of a logger that takes more than numbers, in any Lightning package."""
    known = ("MLFlowLogger", "TensorBoardLogger", "WandbLogger")
    names = [cls.__name__ for cls in type(target).__mro__]
    return next((name for name in names if name in known), "")
