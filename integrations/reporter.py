"""Reports on a run while it trains: on the screen, to loggers, and in its log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.engine import HybridEngine
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.integrations.loggers import Loggers
from hybrid_predict.record import StepRecord
from hybrid_predict.report.log_writer import LogWriter
from hybrid_predict.report.overview import added_cost, cautions, overview
from hybrid_predict.report.run_log import NAME, RunLog
from hybrid_predict.rules.schedule import Phase
from hybrid_predict.torch import ranks

if TYPE_CHECKING:
    import lightning.pytorch as pl

logger = ranks.rank_zero_logger(__name__)

_PHASES = {
    Phase.WARMUP: "warm-up: updates are corrected, nothing is predicted yet",
    Phase.FULL: "the warm-up is over",
    Phase.PREDICT: "predicted steps begin",
    Phase.COOLDOWN: "cooldown: the optimizer alone takes the remaining steps",
    Phase.PLAIN: "plain training for the rest of the run",
}


def _contained(report: Callable[..., None]) -> Callable[..., None]:
    """Make a report that fails cost one warning; training goes on without further reports."""

    @wraps(report)
    def contained(self: Reporter, *args: Any) -> None:
        if self._closed:
            return
        try:
            report(self, *args)
        except Exception:
            logger.warning("HybridPredict stops reporting on this run.", exc_info=True)
            self._detach()

    return contained


@final
class Reporter:
    """Reports on one run, on rank 0 only, except for the progress bar."""

    def __init__(self, trainer: pl.Trainer, engine: HybridEngine, log_dir: str | None) -> None:
        first = trainer.is_global_zero
        self._trainer, self._engine, self._ledger = trainer, engine, engine.ledger
        self._loggers = Loggers(trainer.loggers if first else ())
        self._position, self._unlogged, self._closed = 0, False, False
        self._phases: set[Phase] = set()
        folder = event_folder(trainer, log_dir) if first else None
        self._writer = LogWriter(None if folder is None else folder / NAME)
        self._restore_bar = _extend_bar(trainer.progress_bar_callback, self._shown)

    @property
    def log(self) -> RunLog:
        """The log of the run, empty before its first full step."""
        return self._writer.log

    @_contained
    def step(self, record: StepRecord) -> None:
        """Report a full step from its record."""
        if not self.log.start:
            self._begin()
        if record.phase not in self._phases:
            self._phases.add(record.phase)
            self._loggers.text("phase", record.phase.value)
            skill = "" if record.skill is None else f" (skill {record.skill:.2f})"
            logger.info("Full step %d: %s%s.", record.step, _PHASES[record.phase], skill)
        self._writer.step(record, self._ledger)
        self._loggers.events(self._ledger)
        self._position = self._trainer.fit_loop.epoch_loop._batches_that_stepped
        self._unlogged = True
        every = self._trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and (self._position + 1) % every == 0:
            self._log_row()

    def _begin(self) -> None:
        """Report what the run does; after the first full step the kinds and the cost are known."""
        engine, plan = self._engine, overview(self._engine)
        for caution in () if self._ledger.fell_back else cautions(engine):
            logger.warning("%s", caution)
        text = f"{plan}{added_cost(engine)}"
        if self._ledger.fell_back:
            text = f"leaves this run of {plan.steps:,} steps to the optimizer: plain training"
        elif engine.config.shadow:
            text = "scores forecasts and changes nothing (shadow=True)"
        say(self._trainer, f"HybridPredict {text}.", live=True)
        self._writer.start(plan, engine.config.to_dict(), self._ledger.full_steps - 1)

    @_contained
    def finish(self) -> None:
        """Send the last full step and the outcome to the loggers."""
        self._log_row()
        self._loggers.outcome(self._engine.config, self._ledger, self.log, self._position)

    @_contained
    def close(self, status: str, timeout: float) -> None:
        """Report how the run ended, and send what is queued; later reports do nothing.

        ``status`` is ``finished``, ``stopped`` or ``failed: ...``; servers get ``timeout`` seconds.
        """
        if self.log.start:
            self._writer.end(status)
        self._detach()
        how = "" if status == "finished" else f" {status} after"
        say(self._trainer, f"HybridPredict{how or ':'} {self._ledger}{self._unpredicted()}.")
        if self.log.start and self._writer.path is not None:
            logger.info("See it with: hybrid-predict report %s", self.log.place)
        self._loggers.close(timeout)

    def _detach(self) -> None:
        """Restore the progress bar, and close the run log."""
        self._closed = True
        self._writer.close()
        self._restore_bar()

    def _shown(self) -> dict[str, str]:
        """Return values for the progress bar: share of steps saved, and skill once it is known."""
        ledger = self._ledger
        shown = {"fewer": f"{ledger.saved_steps_fraction:.0%}"}
        return shown if ledger.skill is None else {**shown, "skill": f"{ledger.skill:.2f}"}

    def _unpredicted(self) -> str:
        """Return why no planned predicted step was made, as the last such event says it."""
        engine, ledger = self._engine, self._ledger
        planned = engine.schedule.planned and not engine.config.shadow
        why = "" if ledger.predicted_steps or not planned else ledger.unpredicted
        return f"; {why}" if why else ""

    def _log_row(self) -> None:
        """Log the last full step, unless it was logged already."""
        if self._unlogged:
            self._unlogged = False
            self._loggers.row(self._ledger, self._position)


def event_folder(trainer: pl.Trainer, log_dir: str | None) -> Path | None:
    """Return the folder for the log of a run, or None; ``auto`` is that of the first logger."""
    if log_dir != "auto":
        return None if log_dir is None else Path(log_dir).expanduser()
    folders = [getattr(each, "log_dir", None) for each in trainer.loggers]
    folder = next((each for each in folders if isinstance(each, str)), "://")
    return None if "://" in folder else Path(folder)


def _extend_bar(bar: Any, shown: Callable[[], dict[str, str]]) -> Callable[[], None]:
    """Show values in a progress bar, after the user's metrics; return a function that stops it."""
    if bar is None:
        return lambda: None
    get_metrics = bar.get_metrics

    def extended(*args: Any, **options: Any) -> dict[str, Any]:
        metrics = get_metrics(*args, **options)
        return {**metrics, **{k: v for k, v in shown().items() if k not in metrics}}

    bar.get_metrics = extended
    return lambda: vars(bar).pop("get_metrics", None)


def say(trainer: pl.Trainer, text: str, *, live: bool = False) -> None:
    """Print one line where Lightning prints its own, on rank 0; ``live`` above a progress bar."""
    package, bar = package_of(trainer), trainer.progress_bar_callback
    if bar is None or not trainer.is_global_zero:
        package.utilities.rank_zero_info(text)
    elif logging.getLogger(f"{package.__name__}.utilities.rank_zero").isEnabledFor(logging.INFO):
        # A logging handler may write to a stream that the progress bar overwrites.
        (bar.print if live else print)(text, file=sys.stderr)
