"""What a run tells while it trains: on the screen, to loggers, in its event log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.accounts.clock import Phase
from hybrid_predict.accounts.ledger import SavingsLedger, percent
from hybrid_predict.engine import HybridEngine, StepRecord
from hybrid_predict.engine.overview import cautions, overview
from hybrid_predict.integrations.dashboard import Dashboard
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.integrations.mlflow import Recorder
from hybrid_predict.report.event_log import EventLog
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.run_log import NAME
from hybrid_predict.report.stop_request import is_asked, withdraw
from hybrid_predict.tensors import ranks

if TYPE_CHECKING:
    import lightning.pytorch as pl

logger = ranks.rank_zero_logger(__name__)

_PHASES = {
    Phase.WARMUP: "warm-up: updates are corrected, nothing is predicted yet",
    Phase.FULL: "the warm-up is over",
    Phase.PREDICT: "predicted steps begin",
    Phase.COOLDOWN: "cooldown: the rest is left to the optimizer",
    Phase.PLAIN: "plain training from here on",
}


class Reporter:
    """Tells about one run, on the first rank only but for the progress bar.

    Args:
        trainer: The run's Trainer.
        engine: The run's engine, with what a resumed run goes on from.
        log_dir: Where the event log is written: ``auto``, a folder, or None.
        view: The live view, None for none.

    Attributes:
        folder: The event log's folder, None if nothing is written.
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
        self._done = engine.clock.full_steps
        self._checkpoint: str | None = None
        self.folder = event_folder(trainer, log_dir) if first else None
        for caution in cautions(engine):
            logger.warning("%s", caution)

    @property
    def _ledger(self) -> SavingsLedger:
        return self._engine.ledger

    def step(self, trainer: pl.Trainer, record: StepRecord) -> None:
        """Take the record of a full step."""
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
        """Say what the run does: the first full step tells the kinds of parameters and the cost."""
        engine, share = self._engine, self._ledger.correction_share
        plan, cost = overview(engine), ""
        if share is not None:
            cost = f"; correcting adds {percent(share)} to a full step's operations"
        what = "scores forecasts and changes nothing (shadow=True)"
        text = what if engine.config.shadow else f"{plan}{cost}"
        self._say(trainer, f"HybridPredict {text}.", live=True)
        if self.folder is not None or self._view is not None:
            path, keep = self.folder and self.folder / NAME, self._view is not None
            self._log = EventLog(path, plan, engine.config.to_dict(), self._done, keep=keep)

    def asked_to_stop(self) -> bool:
        """Whether somebody has asked this run to end."""
        log = self._log
        return log is not None and log.path is not None and is_asked(log.path, log.started)

    def stopped(self, checkpoint: str) -> None:
        """Take note of the checkpoint with which the run ends as asked."""
        self._checkpoint = checkpoint

    def shown(self) -> dict[str, str]:
        """What the progress bar shows: the share of steps saved, and skill once it is known."""
        ledger = self._ledger
        shown = {"fewer": f"{ledger.saved_steps_fraction:.0%}"}
        return shown if ledger.skill is None else {**shown, "skill": f"{ledger.skill:.2f}"}

    def finish(self, history: RunHistory) -> None:
        """Send the last full step and the summary to the loggers."""
        self._log_row()
        self._recorder.log_result(self._ledger, self._position)
        self._recorder.log_summary(self._engine.config, self._ledger, history)

    def close(self, trainer: pl.Trainer, status: str, timeout: float) -> None:
        """Say how the run ended, and send what waits; nothing more is told.

        Args:
            trainer: The run's Trainer.
            status: ``finished``, ``stopped`` or ``failed: ...``.
            timeout: Seconds that servers have to take what waits.
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
        self._say(trainer, f"HybridPredict{how or ':'} {self._ledger}.")
        if self._checkpoint is not None:
            self._say(trainer, f"HybridPredict saved {self._checkpoint}, to go on from.")
        if log is not None and log.path is not None:
            logger.info("See it with: hybrid-predict report %s", log.path.parent)
        self._recorder.close(timeout)

    def detach(self) -> None:
        """Leave the screen and the progress bar as they were; let go of the event log's file."""
        if self._log is not None:
            self._log.close()
        self._bar.detach()
        view, self._view = self._view, None
        if view is not None:
            view.stop()

    def _show(self, *, last: bool = False) -> None:
        """Draw the live view; one that cannot be drawn ends, and everything else goes on."""
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
        """Log the last full step, unless it has been."""
        if self._unlogged:
            self._unlogged = False
            self._recorder.log_row(self._ledger, self._position)


def event_folder(trainer: pl.Trainer, log_dir: str | None) -> Path | None:
    """Where the event log of a run belongs, None if nowhere.

    Args:
        trainer: The run's Trainer.
        log_dir: A folder, None, or ``auto`` for the folder of the first logger that makes one for
            each run, as those for TensorBoard and CSV files do.
    """
    if log_dir != "auto":
        return None if log_dir is None else Path(log_dir).expanduser()
    for each in trainer.loggers:
        folder = getattr(each, "log_dir", None)
        if isinstance(folder, str):
            return None if "://" in folder else Path(folder)
    return None


class _Bar:
    """Lets a progress bar show the saving last; none of the user's metrics gives way.

    Args:
        bar: The progress bar, None for none.
        shown: What is added to its metrics.
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
        """Give the bar its own metrics back."""
        bar, self._bar = self._bar, None
        if bar is None:
            return
        if self._own is None:
            bar.__dict__.pop("get_metrics", None)
        else:
            bar.get_metrics = self._own


def say(trainer: pl.Trainer, text: str, *, live: bool = False) -> None:
    """One line where Lightning writes its own, on the first rank.

    Args:
        trainer: The run's Trainer.
        text: The line.
        live: Whether a progress bar may be under way, which has to make room.
    """
    package, bar = package_of(trainer), trainer.progress_bar_callback
    if bar is None or not trainer.is_global_zero:
        package.utilities.rank_zero_info(text)
    elif logging.getLogger(f"{package.__name__}.utilities.rank_zero").isEnabledFor(logging.INFO):
        # Logging keeps the stream that was there first, past a live display, which erases the line.
        (bar.print if live else print)(text, file=sys.stderr)
