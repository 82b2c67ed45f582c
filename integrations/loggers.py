"""Records a run in the loggers of a Trainer: MLflow, TensorBoard, W&B, or any other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from queue import Full, Queue
from threading import Thread
from typing import Any, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.interrupts import raise_interrupt
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report.run_facts import ONE_RUN
from hybrid_predict.report.run_figures import loss_figure
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.torch import ranks

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

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""

MOST_WAITING = 10_000
"""Most calls that wait for a server; further ones count as failed."""

_HEADING = "**HybridPredict:**"
"""How a description begins that the plug-in wrote, and not the user."""

logger = ranks.rank_zero_logger(__name__)


def numbers(ledger: SavingsLedger) -> dict[str, float]:
    """Return the numbers of a ledger that are known and not 0, by the names that loggers get."""
    known = {name: getattr(ledger, name) for name in METRICS}
    return {f"hybrid_predict/{name}": float(value) for name, value in known.items() if value}


@final
class Loggers:
    """Records one run in all loggers of a Trainer.

    A logger that raises causes one warning, and is called again; training and the other loggers
    continue. Another warning at the end reports how many calls failed.
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        self._adapters = [_adapter(each) for each in loggers]
        self._events = 0

    def begin(self, config: HybridConfig) -> None:
        """Log the fields of the configuration that are set, under names that no user has."""
        chosen = {f"hybrid_predict/{name}": value for name, value in _chosen(config).items()}
        self._attempt("settings", chosen)

    def row(self, ledger: SavingsLedger, step: int) -> None:
        """Log the numbers that are known and not 0, at a position of the loggers' x-axis."""
        row = numbers(ledger)
        for kind, skill in ledger.skills.items():
            known = {name: skill[name] for name in KIND_METRICS if name in skill}
            row |= {f"hybrid_predict/{kind}.{name}": float(x) for name, x in known.items()}
        self._attempt("row", row, step, time.time())

    def text(self, name: str, text: str) -> None:
        """Log a text in loggers that accept one."""
        self._attempt("text", name, text)

    def events(self, ledger: SavingsLedger) -> None:
        """Log the events that are new since the last call."""
        for number, event in enumerate(ledger.events[self._events :], self._events):
            self.text(f"event.{number}", f"full step {event['step']}: {event['reason']}")
        self._events = len(ledger.events)

    def outcome(self, config: HybridConfig, ledger: SavingsLedger, log: RunLog, step: int) -> None:
        """Log the result of a finished run, at the position of its last full step."""
        self._attempt("outcome", Outcome(config, ledger, log), step)

    def close(self, timeout: float) -> None:
        """Finish sending within this number of seconds per logger; warn if calls have failed."""
        for each in self._adapters:
            each.close(timeout)
            if each.failures:
                text = "%s: %d calls failed or were not sent in time; the ledger is complete."
                logger.warning(text, each.name, each.failures)

    def _attempt(self, name: str, *arguments: Any) -> None:
        for each in self._adapters:
            each.attempt(partial(getattr(each, name), *arguments))


@final
class Outcome:
    """Result of a finished run, in the forms that loggers take.

    Attributes:
        results: Counts, for a group of their own.
        facts: Values by which tables of runs are filtered and sorted; None is unknown.
        description: The result and the configuration as Markdown.
    """

    def __init__(self, config: HybridConfig, ledger: SavingsLedger, log: RunLog) -> None:
        self.results = {name: float(getattr(ledger, name)) for name in RESULTS}
        self.results["events"] = float(len(ledger.events))
        names = ("full_steps", "steps", "predicted_steps", "saved_steps_fraction", "skill")
        self.facts: dict[str, float | str | None] = {
            "mode": "shadow" if config.shadow else "active",
            "speedup": "auto" if config.paced else config.compression,
            **{name: getattr(ledger, name) for name in names},
        }
        lines = [f"{_HEADING} {ledger}.", "", ONE_RUN, ""]
        if ledger.events:
            events = [(e["reason"], e["step"], e["count"]) for e in ledger.events]
            lines += [*_table(("event", "full step", "times"), events), ""]
        lines += _table(("setting", "value"), _chosen(config).items())
        self.description = "\n".join(lines)
        self.ledger, self.log = ledger.summary(), log


def _chosen(config: HybridConfig) -> dict[str, Any]:
    """Return the fields of a configuration that are set."""
    return {name: value for name, value in config.to_dict().items() if value is not None}


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items()}


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    cells = [[" ".join(str(x).replace("|", "\\|").split()) for x in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *cells)]


class _Adapter:
    """Records a run in one logger of any class; ``failures`` counts the calls that raised."""

    def __init__(self, target: Any) -> None:
        self.target, self.failures = target, 0
        self.name = type(target).__name__

    def attempt(self, call: Callable[[], object]) -> None:
        """Call the logger; if it raises, count the failure, and warn the first time."""
        try:
            call()
        except Exception as error:
            raise_interrupt(error)
            self.failures += 1
            if self.failures == 1:
                text = "hybrid_predict could not record the run in %s: %r. Training continues."
                logger.warning(text, self.name, error)

    def row(self, metrics: Mapping[str, float], step: int, when: float) -> None:
        """Log numbers at a position of the x-axis, measured ``when``, in seconds since 1970."""
        self.target.log_metrics(dict(metrics), step=step)

    def text(self, name: str, text: object) -> None:
        """Log a text, if the logger accepts one."""

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Log the configuration, as the run begins."""
        self.target.log_hyperparams(_texts(settings))

    def outcome(self, outcome: Outcome, step: int) -> None:
        """Log the result of the finished run, at a position of the x-axis."""
        counts = {f"hybrid_predict_end/{name}": n for name, n in outcome.results.items()}
        self.row(counts, step, time.time())

    def close(self, timeout: float) -> None:
        """Finish sending within this number of seconds."""


@final
class _TensorBoard(_Adapter):
    """The description is a text."""

    def settings(self, settings: Mapping[str, Any]) -> None:
        # Without metrics it would add a chart of a constant.
        self.target.log_hyperparams(_texts(settings), {})

    def outcome(self, outcome: Outcome, step: int) -> None:
        super().outcome(outcome, step)
        self.target.experiment.add_text("hybrid_predict", outcome.description)


@final
class _Wandb(_Adapter):
    """Texts and results are in the summary, where they make no chart; the description as notes.

    A row has the user's own metrics of the same full step, so that charts can be drawn over
    ``hybrid_predict/steps``: it is left open for the logger's own call, which comes after it.
    """

    _open: int | None = None
    """The open row, in W&B's own count."""

    def row(self, metrics: Mapping[str, float], step: int, when: float) -> None:
        self.close(0.0)
        run = self.target.experiment
        self._open = run.step
        run.log({**metrics, "trainer/global_step": step}, commit=False)

    def text(self, name: str, text: object) -> None:
        self.target.experiment.summary[f"hybrid_predict/{name}"] = text

    def settings(self, settings: Mapping[str, Any]) -> None:
        self.target.log_hyperparams(dict(settings))  # numbers, to be sorted by

    def outcome(self, outcome: Outcome, step: int) -> None:
        self.close(0.0)
        for name, value in {**outcome.results, **outcome.facts}.items():
            if value is not None:
                self.text(name, value)
        run = self.target.experiment
        if _HEADING in (run.notes or _HEADING):  # keep the user's own notes
            run.notes = outcome.description

    def close(self, timeout: float) -> None:
        """Close the open row, if the logger's own call has not."""
        run = self.target.experiment
        if self._open is not None and run.step == self._open:
            run.log({}, commit=True)
        self._open = None


@final
class _MLflow(_Adapter):
    """Texts are tags; everything is sent from a thread, so that no server delays training.

    The process does not wait for this thread at its end, as it would for MLflow's own: while a
    server is down, for minutes per call.
    """

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self._calls: Queue[Callable[[], object] | None] = Queue()
        self._thread = Thread(target=self._work, name="hybrid_predict-mlflow", daemon=True)
        self._thread.start()

    def attempt(self, call: Callable[[], object]) -> None:
        """Queue a call for the thread."""
        super().attempt(partial(self._queue, call))

    def row(self, metrics: Mapping[str, float], step: int, when: float) -> None:
        from mlflow.entities import Metric

        row = [Metric(name, value, int(when * 1000), step) for name, value in metrics.items()]
        self.target.experiment.log_batch(self.target.run_id, metrics=row)

    def text(self, name: str, text: object) -> None:
        self.target.experiment.set_tag(self.target.run_id, f"hybrid_predict.{name}", text)

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Log parameters, and remove the tags of an earlier training in the same run.

        MLflow refuses to change a parameter, so one that was another then becomes a tag.
        """
        client, run = self.target.experiment, self.target.run_id
        known = client.get_run(run).data
        for tag in known.tags:
            if tag.startswith("hybrid_predict."):
                client.delete_tag(run, tag)
        before = {name: x for name, x in known.params.items() if name.startswith("hybrid_predict/")}
        for name, text in {**dict.fromkeys(before, "None"), **_texts(settings)}.items():
            if name not in before:
                client.log_param(run, name, text)
            elif before[name] != text:
                self.text(name.removeprefix("hybrid_predict/"), text)

    def outcome(self, outcome: Outcome, step: int) -> None:
        """Log counts, tags, description, ledger and figure; MLflow draws bars of step 0."""
        super().outcome(outcome, 0)
        client, run = self.target.experiment, self.target.run_id
        known = client.get_run(run).data
        for name, fact in outcome.facts.items():
            self.text(name, f"{fact:.4g}" if isinstance(fact, float) else fact or "unknown")
        if _HEADING in known.tags.get(NOTE, _HEADING):  # keep the user's own description
            client.set_tag(run, NOTE, outcome.description)
        client.log_dict(run, outcome.ledger, "hybrid_predict/ledger.json")
        client.log_figure(run, loss_figure(outcome.log), "hybrid_predict/run.png")

    def close(self, timeout: float) -> None:
        """Wait for the thread; calls that it has not sent by then count as failed."""
        self._calls.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():  # in a call, before those that wait and the None
            self.failures += self._calls.qsize()

    def _queue(self, call: Callable[[], object]) -> None:
        if self._calls.qsize() >= MOST_WAITING:
            raise Full
        self._calls.put(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            super().attempt(call)


_ADAPTERS = {"MLFlowLogger": _MLflow, "TensorBoardLogger": _TensorBoard, "WandbLogger": _Wandb}


def _adapter(target: Any) -> _Adapter:
    """Return the adapter of a logger, by the name of its class in any Lightning package."""
    names = [cls.__name__ for cls in type(target).__mro__]
    return next((_ADAPTERS[name] for name in names if name in _ADAPTERS), _Adapter)(target)
