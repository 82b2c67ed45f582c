"""Reports on a run while it trains: in lines, to loggers, and in its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, final

from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import raise_interrupt
from hybrid_predict.integrations.loggers import Loggers
from hybrid_predict.ledger import StepRecord, why_unpredicted
from hybrid_predict.policy.schedule import Phase
from hybrid_predict.ranks import processes
from hybrid_predict.runs import slow_run
from hybrid_predict.runs.log import NAME, LogWriter, RunLog
from hybrid_predict.runs.overview import added_cost, cautions, overview

logger = processes.rank_zero_logger(__name__)

# Audits, which compare seconds, mute it.
_slow_logger = processes.rank_zero_logger(slow_run.__name__)


def _contained(report: Callable[..., None]) -> Callable[..., None]:
    """Make a report that fails cost one warning; training goes on without further reports."""

    @wraps(report)
    def contained(self: Reporter, *args: Any, **options: Any) -> None:
        if self._closed:
            return
        try:
            report(self, *args, **options)
        except Exception as error:
            raise_interrupt(error)
            logger.warning("HybridPredict stops reporting on this run.", exc_info=True)
            self._stop()

    return contained


@final
class Reporter:
    """Reports on one run in any framework.

    Args:
        engine: The engine of the run.
        say: Shows one line to the user, on rank 0.
        folder: Folder of the run log, or None; None on all ranks but the first.
        loggers: Loggers of a Lightning Trainer; none on all ranks but the first.
        audited: Whether ``hybrid-predict audit`` takes such a Trainer.
    """

    def __init__(
        self,
        engine: HybridEngine,
        say: Callable[[str], None],
        folder: Path | None,
        loggers: Sequence[Any] = (),
        *,
        audited: bool = True,
    ) -> None:
        self._engine = engine
        self._say = say
        self._audited = audited
        self._ledger = engine.ledger
        self._loggers = Loggers(loggers)
        self._unlogged: int | None = None  # position of the last full step, if no logger has it
        self._closed = False
        self._phase: Phase | None = None
        self._slow = slow_run.SlowRun(engine)
        self._writer = LogWriter(None if folder is None else folder / NAME)

    @property
    def log(self) -> RunLog:
        """The log of the run, empty before its first full step."""
        return self._writer.log

    @_contained
    def step(self, record: StepRecord, position: int = 0, *, due: bool = False) -> None:
        """Report a full step from its record.

        ``position`` is where it is on the loggers' x-axis, and ``due`` whether they get a row.
        """
        if not self.log.start:
            self._begin()
        elif self.log.steps != self._engine.schedule.total:
            self._writer.plan(overview(self._engine))
        if record.phase is not self._phase:
            self._phase = record.phase
            logger.info("Full step %d: phase %s.", record.step, record.phase.value)
        if slow := self._slow.warning(record.step):
            _slow_logger.warning("Full step %d: %s.", record.step, slow)
        self._writer.step(record, self._ledger)
        self._unlogged = position
        if due:
            self._log_row()

    def _begin(self) -> None:
        """Report what the run does; after the first full step the kinds and the cost are known."""
        engine = self._engine
        plan = overview(engine)
        text = f"{plan}{added_cost(engine)}"
        if self._ledger.fell_back:
            text = self._ledger.fell_back
        elif engine.config.shadow:
            text = "scores forecasts and changes nothing (shadow=True)"
        else:
            for caution in cautions(engine):
                logger.warning("%s", caution)
        self._say(f"HybridPredict {text}.")
        done = self._ledger.full_steps - 1
        self._writer.start(plan, engine.config.to_dict(), done, self._audited)
        self._loggers.begin(engine.config)

    def _log_row(self) -> None:
        if self._unlogged is not None:
            self._loggers.row(self._ledger, self._unlogged)
        self._unlogged = None

    @_contained
    def close(self, status: str) -> None:
        """Report how the run ended, ``finished``, ``stopped`` or ``failed: ...``; once."""
        self._log_row()
        self._loggers.end(self._ledger, status)
        if self.log.start:
            self._writer.end(status)
        self._stop()
        why = self._ledger.fell_back
        if not (why or self._ledger.predicted_steps):
            why = why_unpredicted(self._ledger.events)
        how = "" if status == "finished" else f" {status} after"
        self._say(f"HybridPredict{how or ':'} {self._ledger}{why and f'; {why}'}.")
        if self.log.start and self._writer.path is not None:
            logger.info("See it with: hybrid-predict report %s", self.log.place)

    def _stop(self) -> None:
        self._closed = True
        self._writer.close()
