"""Reports on a run while it trains: on the screen, to loggers, and in its log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, final

from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import ConfigError, raise_interrupt
from hybrid_predict.integrations.loggers import Loggers
from hybrid_predict.ledger import StepRecord, why_unpredicted
from hybrid_predict.policy.schedule import Phase
from hybrid_predict.ranks import processes
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.log import NAME, LogWriter, RunLog
from hybrid_predict.runs.overview import Overview, added_cost, cautions, overview

logger = processes.rank_zero_logger(__name__)

_PHASES = {
    Phase.WARMUP: "warm-up: updates are corrected, nothing is predicted yet",
    Phase.FULL: "the warm-up is over",
    Phase.PREDICT: "predicted steps begin",
    Phase.COOLDOWN: "cooldown: the optimizer alone takes the remaining steps",
    Phase.PLAIN: "plain training for the rest of the run",
}


def checked_folder(log_dir: Any) -> str | None:
    """Return the folder of a run's log, "auto" or None, as an integration's argument names it.

    Raises:
        ConfigError: If it is no path.
    """
    if log_dir is None:
        return None
    if not isinstance(log_dir, (str, PathLike)):
        raise ConfigError("log_dir", "a path, 'auto' or None", log_dir)
    return str(given_path("log_dir", log_dir))


def ending(error: BaseException) -> str:
    """Return the status of a run that an exception has ended: ``failed: ...`` or ``stopped: ...``.

    By Python's convention an exception that is an error has a name that says so. Those of other
    names end a run on purpose, as ``TrialPruned`` of Optuna does.
    """
    kind = type(error)
    known = {base for base in kind.__mro__ if base.__module__ in sys.stdlib_module_names}
    named = kind.__name__.endswith(("Error", "Exception", "Warning"))
    failed = named or known > {object, BaseException, Exception}
    return f"{'failed' if failed else 'stopped'}: {processes.summary(error)}"


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
            self._detach()

    return contained


class Screen(Protocol):
    """Where a Trainer shows lines and a progress bar."""

    def say(self, text: str, *, live: bool = False) -> None:
        """Print one line on rank 0; ``live`` above a progress bar."""

    def show(self, values: Callable[[], dict[str, str]]) -> None:
        """Show values in the progress bar from now on."""

    def restore(self) -> None:
        """Leave the progress bar as it was before."""


@final
class Reporter:
    """Reports on one run in any framework.

    ``loggers`` and ``folder``, of the run log, should be empty and None on all ranks but the first.
    """

    def __init__(
        self, engine: HybridEngine, screen: Screen, folder: Path | None, loggers: Sequence[Any] = ()
    ) -> None:
        self._screen = screen
        self._engine = engine
        self._ledger = engine.ledger
        self._loggers = Loggers(loggers)
        self._position = 0  # of the last full step
        self._unlogged = False
        self._closed = False
        self._phases: set[Phase] = set()
        self._writer = LogWriter(None if folder is None else folder / NAME)
        screen.show(self._shown)

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
            self._write_start(overview(self._engine))
        phase = Phase.PLAIN if self._ledger.fell_back else record.phase
        if phase not in self._phases:
            self._phases.add(phase)
            self._loggers.text("phase", phase.value)
            skill = "" if record.skill is None else f" (skill {record.skill:.2f})"
            logger.info("Full step %d: %s%s.", record.step, _PHASES[phase], skill)
        self._writer.step(record, self._ledger)
        self._loggers.events(self._ledger)
        self._position = position
        self._unlogged = True
        if due:
            self._log_row()

    def _begin(self) -> None:
        """Report what the run does; after the first full step the kinds and the cost are known."""
        engine = self._engine
        plan = overview(engine)
        text = self._ledger.fell_back  # in the run that it resumes
        for caution in () if text else cautions(engine):
            logger.warning("%s", caution)
        if engine.config.shadow:
            text = "scores forecasts and changes nothing (shadow=True)"
        if self._fell_back_in != self._ledger.full_steps:  # else a warning has just said so
            if self._ledger.fell_back:
                text = f"stays plain training, as the saved run {text}; to try again, start anew"
            self._screen.say(f"HybridPredict {text or f'{plan}{added_cost(engine)}'}.", live=True)
        self._write_start(plan)
        self._loggers.begin(engine.config)

    def _write_start(self, plan: Overview) -> None:
        done = self._ledger.full_steps - 1
        self._writer.start(plan, self._engine.config.to_dict(), done)

    @_contained
    def finish(self) -> None:
        """Send the last full step and the outcome to the loggers."""
        self._log_row()
        self._loggers.outcome(self._engine.config, self._ledger, self.log, self._position)

    @_contained
    def close(self, status: str) -> None:
        """Report how the run ended; later reports do nothing.

        ``status`` is ``finished``, ``stopped`` or that of :func:`ending`.
        """
        if self.log.start:
            self._writer.end(status)
        self._detach()
        how = "" if status == "finished" else f" {status} after"
        self._screen.say(f"HybridPredict{how or ':'} {self._ledger}{self._setback()}.")
        if self.log.start and self._writer.path is not None:
            logger.info("See it with: hybrid-predict report %s", self.log.path.parent)
        self._loggers.text("status", status)

    def _detach(self) -> None:
        """Restore the progress bar, and make no further report."""
        self._closed = True
        self._screen.restore()

    def _shown(self) -> dict[str, str]:
        """Return values for the progress bar: share of steps saved, and skill once it is known."""
        ledger = self._ledger
        shown = {"fewer": f"{ledger.saved_steps_fraction:.0%}"}
        return shown if ledger.skill is None else {**shown, "skill": f"{ledger.skill:.2f}"}

    @property
    def _fell_back_in(self) -> int:
        """Number of the full step in which the run fell back; 0 if it did not."""
        reason = self._ledger.fell_back
        events = self._ledger.events
        return next((int(event["step"]) for event in events if event["reason"] == reason), 0)

    def _setback(self) -> str:
        """Return when the run fell back, or why no planned predicted step was made."""
        if step := self._fell_back_in:  # a warning has said why
            return f"; fell back to plain training in full step {step:,}"
        why = "" if self._ledger.predicted_steps else why_unpredicted(self._ledger.events)
        return f"; {why}" if why else ""

    def _log_row(self) -> None:
        """Log the last full step, unless it was logged already."""
        if self._unlogged:
            self._unlogged = False
            self._loggers.row(self._ledger, self._position)
