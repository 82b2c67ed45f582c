"""Metrics, configuration and outcome of a run through the Trainer's own loggers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.integrations.mlflow import MLflowSink
from hybrid_predict.integrations.sinks import Outcome, Sink, TensorBoardSink
from hybrid_predict.integrations.wandb import WandbSink
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report.history import RunHistory
from hybrid_predict.torch import ranks

logger = ranks.rank_zero_logger(__name__)

_COURSE = (
    "steps", "predicted_steps", "undone_steps", "saved_steps_fraction", "skill", "mean_length",
    "overhead_fraction", "estimated_seconds_saved",
)  # fmt: skip
"""Of the ledger, logged while the run trains; full steps are the loggers' own axis."""

_LENGTHS = ("length", "fitted", "error")
"""Of the skill of each kind, logged beside them."""

_RESULT = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Of the ledger, logged once at its end, for tables and for sorting."""

_SINKS: dict[str, type[Sink]] = {
    "MLFlowLogger": MLflowSink,
    "TensorBoardLogger": TensorBoardSink,
    "WandbLogger": WandbSink,
}


@final
class Recorder:
    """Records one run in the Trainer's loggers.

    A logger that raises costs one warning, and is called again: the training and the other loggers
    go on. How often it raised is told at the end.

    Args:
        loggers: The loggers of a Trainer, of whichever package; their experiments exist.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._sinks = [_sink(each) for each in loggers]
        self._failed = [0] * len(self._sinks)
        self._events = 0

    def log_row(self, ledger: SavingsLedger, step: int) -> None:
        """Send the numbers of a ledger to every logger; what is still 0 would be an empty chart.

        Args:
            ledger: The run's ledger.
            step: Position on the loggers' x-axis.
        """
        numbers = {f"hybrid_predict/{name}": getattr(ledger, name) for name in _COURSE}
        for kind, skill in ledger.skills.items():
            numbers |= {f"hybrid_predict/{kind}.{name}": skill[name] for name in _LENGTHS}
        row = {name: float(value) for name, value in numbers.items() if value}
        self._each(lambda sink: sink.row(row, step))

    def log_result(self, ledger: SavingsLedger, step: int) -> None:
        """Send what is known only when the run has ended; args are those of :meth:`log_row`."""
        counts = {name: float(getattr(ledger, name)) for name in _RESULT}
        counts["events"] = float(len(ledger.events))
        self._each(lambda sink: sink.result(counts, step))

    def log_phase(self, phase: str) -> None:
        """Tell the phase that has begun where there is room for text."""
        self._each(lambda sink: sink.text("phase", phase))

    def log_events(self, ledger: SavingsLedger) -> None:
        """Tell the ledger's events that are new since the last call where there is room."""
        for number, event in enumerate(ledger.events[self._events :], self._events):
            name, said = f"event.{number}", f"full step {event['step']}: {event['reason']}"
            self._each(lambda sink, name=name, said=said: sink.text(name, said))  # type: ignore[misc]
        self._events = len(ledger.events)

    def log_summary(self, config: HybridConfig, ledger: SavingsLedger, history: RunHistory) -> None:
        """Record a finished run: its configuration, and what came of it.

        Args:
            config: The run's configuration.
            ledger: What it cost and saved.
            history: Its course.
        """
        outcome = Outcome(config, ledger, history)
        self._each(lambda sink: sink.outcome(outcome))

    def close(self, timeout: float = 30.0) -> None:
        """Send what waits, for so many seconds at most, and end the threads."""
        self._each(lambda sink: sink.close(timeout))
        for sink, count in zip(self._sinks, self._failed, strict=True):
            if count:
                logger.warning("%s failed %d times in all; the ledger is whole.", sink.name, count)

    def _each(self, act: Callable[[Sink], None]) -> None:
        """Act on every logger; whatever one does, the others are served, and training goes on."""
        for number, sink in enumerate(self._sinks):
            try:
                act(sink)
            except Exception as error:
                self._failed[number] += 1
                if self._failed[number] == 1:
                    text = "hybrid_predict could not record the run in %s: %r. Training goes on."
                    logger.warning(text, sink.name, error)


def _sink(target: Any) -> Sink:
    """How to record in a logger, by the name of its class in any Lightning package."""
    names = [cls.__name__ for cls in type(target).__mro__]
    found = next((_SINKS[name] for name in names if name in _SINKS), Sink)
    return found(target)
