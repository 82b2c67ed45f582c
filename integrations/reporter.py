"""Reports on a run while it trains: on the screen, to loggers, and in its event log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.engine import HybridEngine
from hybrid_predict.integrations.dashboard import Dashboard
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.integrations.recorder import Recorder
from hybrid_predict.ledger import SavingsLedger, percent
from hybrid_predict.overview import cautions, overview
from hybrid_predict.record import StepRecord
from hybrid_predict.report.event_log import EventLog
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.run_log import NAME
from hybrid_predict.report.stop_request import is_asked, withdraw
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


@final
class Reporter:
    """Reports on one run, on rank 0 only, except for the progress bar.

    Args:
        trainer: The run's Trainer.
        engine: The run's engine, after a saved state was loaded.
        log_dir: Folder of the event log: ``auto``, a path, or None.
        view: The live view, or None.

    Attributes:
        folder: Folder of the event log, or None if none is written.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        engine: HybridEngine,
        log_dir: str | None,
        view: Dashboard | None = None,
    ) -> None:
        first = trainer.is_global_zero
        self._engine = engine
        self._recorder = Recorder(trainer.loggers if first else ())
        self._position, self._unlogged = 0, False
        self._last: StepRecord | None = None
        self._seen: set[Phase] = set()
        self._log: EventLog | None = None
        self._view = view
        self._bar = _Bar(None if view else trainer.progress_bar_callback, self.shown)
        self._done = engine.ledger.full_steps
        self._checkpoint: str | None = None
        self.folder = event_folder(trainer, log_dir) if first else None
        for caution in cautions(engine):
            logger.warning("%s", caution)

    @property
    def _ledger(self) -> SavingsLedger:
        return self._engine.ledger

    def step(self, trainer: pl.Trainer, record: StepRecord) -> None:
        """Report a full step from its record."""
        ledger = self._ledger
        if self._last is None:
            self._begin(trainer)
        self._tell_phase(record)
        self._last = record
        if self._log is not None:
            self._log.step(record, ledger)
            self._show()
        position = trainer.fit_loop.epoch_loop._batches_that_stepped
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        self._position, self._unlogged = position, True
        self._recorder.log_events(ledger)
        if trainer.loggers and every and (position + 1) % every == 0:
            self._log_row()

    def _begin(self, trainer: pl.Trainer) -> None:
        """Report what the run does; after the first full step the kinds and the cost are known."""
        engine, share = self._engine, self._ledger.correction_share
        plan, cost = overview(engine), ""
        if share is not None and any(part.corrected for part in plan.parts):
            cost = f"; correcting adds {percent(share)} to a full step's operations"
            if share > engine.config.max_overhead:
                cost += " (max_overhead counts one this small as 1e8)"
        what = "scores forecasts and changes nothing (shadow=True)"
        text = what if engine.config.shadow else f"{plan}{cost}"
        self._say(trainer, f"HybridPredict {text}.", live=True)
        if self.folder is not None or self._view is not None:
            path, keep = self.folder and self.folder / NAME, self._view is not None
            self._log = EventLog(path, plan, engine.config.to_dict(), self._done, keep=keep)

    def asked_to_stop(self) -> bool:
        """Whether a user has requested that this run stops."""
        log = self._log
        return log is not None and log.path is not None and is_asked(log.path, log.started)

    def stopped(self, checkpoint: str) -> None:
        """Record the path of the checkpoint with which the run stops on request."""
        self._checkpoint = checkpoint

    def shown(self) -> dict[str, str]:
        """Values for the progress bar: share of steps saved, and skill once it is known."""
        ledger = self._ledger
        shown = {"fewer": f"{ledger.saved_steps_fraction:.0%}"}
        return shown if ledger.skill is None else {**shown, "skill": f"{ledger.skill:.2f}"}

    def finish(self, history: RunHistory) -> None:
        """Send the last full step and the summary to the loggers."""
        self._log_row()
        self._recorder.log_result(self._ledger, self._position)
        self._recorder.log_summary(self._engine.config, self._ledger, history)

    def close(self, trainer: pl.Trainer, status: str, timeout: float) -> None:
        """Report how the run ended, and send what is queued.

        Args:
            trainer: The run's Trainer.
            status: ``finished``, ``stopped`` or ``failed: ...``.
            timeout: Seconds to wait for servers.
        """
        if self._checkpoint is not None and status == "stopped":
            status = "stopped as asked"
        log = self._log
        if log is not None:
            log.end(status, self._last, self._ledger, self._checkpoint)
            if log.path is not None:
                withdraw(log.path, log.started)
            self._show(last=True)
        self.detach()
        how = "" if status == "finished" else f" {status} after"
        self._say(trainer, f"HybridPredict{how or ':'} {self._ledger}{self._unpredicted()}.")
        if self._checkpoint is not None:
            self._say(trainer, f"HybridPredict saved {self._checkpoint}, to go on from.")
        if log is not None and log.path is not None:
            place = log.path.parent if log.path.name == NAME else log.path
            logger.info("See it with: hybrid-predict report %s", place)
        self._recorder.close(timeout)

    def _unpredicted(self) -> str:
        """Return why no planned predicted step was made, as the last such event says it."""
        ledger, planned = self._ledger, self._engine.schedule.planned
        if not planned or ledger.predicted_steps or self._engine.config.shadow:
            return ""
        return f"; {ledger.unpredicted}" if ledger.unpredicted else ""

    def detach(self) -> None:
        """Restore the screen and the progress bar, and close the event log."""
        if self._log is not None:
            self._log.close()
        self._bar.detach()
        view, self._view = self._view, None
        if view is not None:
            view.stop()

    def _show(self, *, last: bool = False) -> None:
        """Draw the live view; if this fails, training continues without it."""
        if self._view is None or self._log is None:
            return
        try:
            self._view.show(self._log.run, last=last)
        except Exception:
            view, self._view = self._view, None
            view.stop()
            logger.warning("HybridPredict cannot draw its live view.", exc_info=True)

    def _say(self, trainer: pl.Trainer, text: str, *, live: bool = False) -> None:
        if self._view is None:
            say(trainer, text, live=live)
        else:
            self._view.print(text)

    def _tell_phase(self, record: StepRecord) -> None:
        if record.phase in self._seen:
            return
        self._seen.add(record.phase)
        self._recorder.log_phase(record.phase.value)
        known = "" if record.skill is None else f" (skill {record.skill:.2f})"
        logger.info("Full step %d: %s%s.", record.step, _PHASES[record.phase], known)

    def _log_row(self) -> None:
        """Log the last full step, unless it was logged already."""
        if self._unlogged:
            self._unlogged = False
            self._recorder.log_row(self._ledger, self._position)


def event_folder(trainer: pl.Trainer, log_dir: str | None) -> Path | None:
    """Return the folder for the event log of a run, or None.

    Args:
        trainer: The run's Trainer.
        log_dir: A folder, None, or ``auto`` for the folder of the first logger that makes one per
            run, as those for TensorBoard and CSV files do.
    """
    if log_dir != "auto":
        return None if log_dir is None else Path(log_dir).expanduser()
    for each in trainer.loggers:
        folder = getattr(each, "log_dir", None)
        if isinstance(folder, str):
            return None if "://" in folder else Path(folder)
    return None


@final
class _Bar:
    """Adds values to a progress bar, after the user's metrics.

    Args:
        bar: The progress bar, or None.
        shown: Function that returns the added values.
    """

    def __init__(self, bar: Any, shown: Callable[[], dict[str, str]]) -> None:
        self._bar = bar
        if bar is None:
            return
        self._own = bar.__dict__.get("get_metrics")
        get_metrics = bar.get_metrics

        def extended(*args: Any, **options: Any) -> dict[str, Any]:
            own = get_metrics(*args, **options)
            return {**own, **{k: v for k, v in shown().items() if k not in own}}

        bar.get_metrics = extended

    def detach(self) -> None:
        """Restore the progress bar's own metrics."""
        bar, self._bar = self._bar, None
        if bar is None:
            return
        if self._own is None:
            bar.__dict__.pop("get_metrics", None)
        else:
            bar.get_metrics = self._own


def say(trainer: pl.Trainer, text: str, *, live: bool = False) -> None:
    """Print one line where Lightning prints its own, on rank 0.

    Args:
        trainer: The run's Trainer.
        text: The line.
        live: Whether a progress bar may be on the screen, above which the line is printed.
    """
    package, bar = package_of(trainer), trainer.progress_bar_callback
    if bar is None or not trainer.is_global_zero:
        package.utilities.rank_zero_info(text)
    elif logging.getLogger(f"{package.__name__}.utilities.rank_zero").isEnabledFor(logging.INFO):
        # A logging handler may write to a stream that the progress bar overwrites.
        (bar.print if live else print)(text, file=sys.stderr)
