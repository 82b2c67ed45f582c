"""Reports on a run while it trains: in lines, to the Trainer's loggers, and in its log."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, final

from tqdm import tqdm

from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import raise_interrupt
from hybrid_predict.ledger import FELL_BACK, SavingsLedger, StepRecord, percent, remarks
from hybrid_predict.ranks import processes
from hybrid_predict.runs.log import NAME, ONE_RUN, RunLog
from hybrid_predict.runs.overview import Overview, cautions, overview

METRICS = (
    "full_steps",
    "steps",
    "corrected_steps",
    "predicted_steps",
    "undone_steps",
    "saved_steps_fraction",
    "skill",
    "overhead_fraction",
    "estimated_seconds_saved",
)
"""Numbers of the ledger that are logged while the run trains, over full steps; the log has all."""

NOTE = "mlflow.note.content"  # tag that MLflow shows as a run's description
_HEADING = "**HybridPredict:**"  # of a description that the plug-in has written, and not the user
_PLACE = "hybrid_predict"  # folder of the plug-in's artifacts in MLflow
_PACKAGE = logging.getLogger("hybrid_predict")
logger = processes.rank_zero_logger(__name__)


def numbers(ledger: SavingsLedger) -> dict[str, float]:
    """Return the numbers of a ledger that are known and not 0, by the names that loggers get.

    The share of steps saved is there from the start, so that every run has it in a list of runs.
    """
    known = {name: getattr(ledger, name) for name in METRICS}
    if ledger.best is not None:
        known["best.value"] = ledger.best["value"]
    return {
        f"hybrid_predict/{name}": float(value)
        for name, value in known.items()
        if value or name == "saved_steps_fraction"
    }


def _is_a(target: Any, name: str) -> bool:
    return name in [cls.__name__ for cls in type(target).__mro__]  # of any Lightning package


def show(text: str) -> None:
    """Show a line above a progress bar of tqdm or Rich, which a line of a logger would tear."""
    with suppress(OSError, ValueError):  # a closed terminal must not end training
        tqdm.write(text, file=sys.stderr)


@final
class _Shown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        show(self.format(record))


@final
class Reporter:
    """Reports on one run in any framework.

    Args:
        engine: The engine of the run.
        say: Shows one line to the user, on rank 0. Where it is `show`, warnings go there too.
        folder: Folder of the run log, or None; None on all ranks but the first.
        loggers: Loggers of a Lightning Trainer, or like them; none on all ranks but the first.
        options: Arguments of the callback that its configuration does not have, for the loggers.

    Attributes:
        log: The log of the run, empty before its first full step.
    """

    def __init__(
        self,
        engine: HybridEngine,
        say: Callable[[str], None],
        folder: Path | None,
        loggers: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine = engine
        self._say = say
        self._ledger = engine.ledger
        self._loggers = loggers
        self._options = options or {}
        self._failed: set[int] = set()
        self._position: int | None = None  # of the last full step
        self._logged: dict[str, float] = {}  # numbers that the loggers got last
        self._closed = False
        self._warnings = _Shown(logging.WARNING)
        if say is show and not _PACKAGE.hasHandlers():  # else the user has chosen another place
            _PACKAGE.addHandler(self._warnings)
        self.log = RunLog(None if folder is None else folder / NAME)

    @property
    def predicted(self) -> int:
        """Number of predicted steps that the run may make; known after its first full step."""
        none = not self.log.start or self._ledger.last_event(FELL_BACK)[1]
        return 0 if none else int(self.log.start["plan"]["predicted"])

    @property
    def shown(self) -> dict[str, Any]:
        """Values for a progress bar: share of predicted steps, and skill once it is known."""
        values = {"predicted": percent(self._ledger.saved_steps_fraction)}
        skill = self._ledger.skill
        return values if skill is None else {**values, "skill": f"{skill:.2f}"}

    def step(self, record: StepRecord, position: int = 0, *, due: bool = False) -> None:
        """Report a full step from its record.

        ``position`` is where it is on the loggers' x-axis, and ``due`` whether they get a row.
        """
        with self._failing(self):
            if not self.log.start or self.log.steps != self._engine.schedule.total:
                plan = overview(self._engine)
                if not self.log.start:
                    self._begin(plan)
                with self._failing(self.log):
                    before = self._ledger.full_steps - 1
                    self.log.begin(plan, self._engine.config.to_dict(), before)
            with self._failing(self.log):
                self.log.step(record, self._ledger)
            self._position = position
            if due:
                self.log_row()

    def _begin(self, plan: Overview) -> None:
        engine = self._engine
        text = str(plan)
        if self._ledger.last_event(FELL_BACK)[1]:
            text = f"leaves this run to {remarks(self._ledger)[0]}"
        elif engine.config.shadow:
            text = "scores forecasts and changes nothing (shadow=True)"
        else:
            for caution in cautions(engine):
                logger.warning("%s", caution)
        self._say(f"HybridPredict {text}.")
        # Fields that are set, under names that no user has.
        chosen = {
            f"hybrid_predict/{name}": value if isinstance(value, (int, float)) else str(value)
            for name, value in {**engine.config.to_dict(), **self._options}.items()
            if value is not None
        }
        for each in self._loggers:
            with self._failing(each):
                # Without metrics TensorBoard would add a chart of a constant.
                none: list[Any] = [{}] if _is_a(each, "TensorBoardLogger") else []
                each.log_hyperparams(chosen, *none)

    def log_row(self) -> None:
        """Log the numbers of the last full step to the loggers, if there are new ones."""
        found = numbers(self._ledger)
        if self._position is None or found == self._logged:
            return
        self._logged = found
        for each in self._loggers:
            with self._failing(each):
                each.log_metrics(found, step=self._position)

    @contextmanager
    def _failing(self, target: Any) -> Iterator[None]:
        """Warn once of a logger, or of this object, that raises; training and others continue."""
        try:
            yield
        except Exception as error:
            raise_interrupt(error)
            if id(target) not in self._failed:
                text = "hybrid_predict could not record the run in %s: %r. Training continues."
                logger.warning(text, type(target).__name__, error, exc_info=target is self)
            self._failed.add(id(target))

    def _end_in_mlflow(self, status: str) -> str:
        """Leave what the run has found, a description of the user apart; return how to read it."""
        command = ""
        for each in self._loggers:
            if not _is_a(each, "MLFlowLogger"):
                continue
            with self._failing(each):
                client = each.experiment
                run = each.run_id
                read = f"hybrid-predict report $(mlflow artifacts download -r {run} -a {_PLACE})"
                client.set_tag(run, "hybrid_predict.status", status)
                client.set_tag(run, "hybrid_predict.report", read)
                if _HEADING in client.get_run(run).data.tags.get(NOTE, _HEADING):
                    told = "; ".join([str(self._ledger), *remarks(self._ledger)])
                    how = f"The run log is among the artifacts:\n\n    {read}"
                    client.set_tag(run, NOTE, f"{_HEADING} {told}.\n\n{ONE_RUN}\n\n{how}")
                client.log_dict(run, self._ledger.summary(), f"{_PLACE}/ledger.json")
                client.log_text(run, self.log.text, f"{_PLACE}/{NAME}")
                command = read
        return command

    def close(self, status: str) -> None:
        """Report how the run ended, ``finished``, ``stopped`` or ``failed: ...``; once."""
        if self._closed:
            return
        self._closed = True
        with self._failing(self):
            self._end(status)
        _PACKAGE.removeHandler(self._warnings)

    def _end(self, status: str) -> None:
        self.log_row()
        if self.log.start:
            with self._failing(self.log):
                self.log.close(status)
        command = self._end_in_mlflow(status)
        if self.log.path is not None and id(self.log) not in self._failed:
            command = f"hybrid-predict report {quote(str(self.log.path.parent))}"
        told = [str(self._ledger), *remarks(self._ledger), self._early(status), self._blind(status)]
        lost = any(not math.isfinite(row.loss or 0.0) for row in self.log.rows[-1:])
        if self.log.losses and (lost or self._ledger.best is None):
            told.insert(1, f"training loss {self.log.losses}")
        known = {"finished": "", "stopped": " (stopped before its last step)"}
        how = known.get(status, f" ({status})")
        if self._engine.done and self._ledger.steps < self._engine.schedule.total:
            how = ' (stopped because it overfits, on_overfit="stop")'
        self._say(f"HybridPredict{how}: {'; '.join(filter(None, told))}.")
        if command and self.log.start:
            self._say(f"More about the run: {command}")

    def _early(self, status: str) -> str:
        """Return why a run that was stopped has made no predicted steps, if it is its warm-up."""
        warmup = self._engine.schedule.warmup
        if status != "stopped" or not self.predicted or self._ledger.steps > warmup:
            return ""
        text = f"it ended in its warm-up of {warmup:,} steps, without predictions"
        return f"{text}; see warmup_steps"

    def _blind(self, status: str) -> str:
        if status != "finished" or self._engine.config.on_overfit == "ignore":
            return ""
        lacking = "finite validation"
        if self._ledger.best is not None:
            lacking = "training loss" if math.isnan(self._engine._policy.limits.mean) else ""
        return f"no {lacking} was seen, so overfitting would go unnoticed" if lacking else ""
