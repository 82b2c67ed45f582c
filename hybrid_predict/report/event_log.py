"""Writes the event log of a run, a file of JSON lines, while it trains."""

from __future__ import annotations

import json
import logging
import os
import stat
from contextlib import suppress
from errno import EINVAL, ENOSPC
from pathlib import Path
from time import monotonic, time
from typing import Any
from uuid import uuid4

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.overview import Overview
from hybrid_predict.record import StepRecord
from hybrid_predict.report.log_lines import SCHEMA
from hybrid_predict.report.run_log import NAME, RunLog, told
from hybrid_predict.runs.runtime import environment, finite

ROWS = 500
"""Rows evenly spaced over a run; more are written if they are many seconds apart."""

_PATIENCE = 10.0

logger = logging.getLogger(__name__)


class EventLog:
    """Appends one run to a file; if the file cannot be written, training goes on without it.

    Every line names its run, and is written at once, as a whole. If another run is writing to the
    file, this one gets a file of its own beside it.

    Args:
        path: The file; it and its folder are created if missing. None writes no file.
        plan: Plan of the run.
        config: Configuration of the run, as plain data.
        full_steps: Full steps done before a resumed run goes on; 0 for a new run.
        keep: Whether to keep the log in ``run`` as well.

    Attributes:
        path: The file, or the one that this run got in its place.
        run: The log as :func:`~hybrid_predict.report.run_log.read_log` returns it, or None.
        started: Start of the run, in seconds since 1970.
    """

    def __init__(
        self,
        path: Path | None,
        plan: Overview,
        config: dict[str, Any],
        full_steps: int = 0,
        *,
        keep: bool = False,
    ) -> None:
        self.path = path
        self.run: RunLog | None = None
        self.started = round(time(), 3)
        self._keep = keep
        self._every = max(1, plan.steps // ROWS)
        self._losses: list[float] = []
        self._events = self._rows = 0
        self._written = monotonic()
        self._id = uuid4().hex
        self._file: Any = None
        if path is not None:
            self._open(path)
        start = {
            "time": self.started,
            "schema": SCHEMA,
            "full_steps": full_steps,
            "config": config,
            "plan": plan.to_dict(),
            "environment": environment(),
        }
        self._write("start", start)

    def step(self, record: StepRecord, ledger: SavingsLedger) -> None:
        """Take the record of a full step; write new events at once, and a row if one is due."""
        if record.loss is not None:
            self._losses.append(record.loss)
        for event in ledger.events[self._events :]:
            self._write("event", {"full_steps": event["step"], "reason": event["reason"]})
        fresh = len(ledger.events) != self._events
        self._events = len(ledger.events)
        due = record.step % self._every == 0 or monotonic() - self._written > _PATIENCE
        if due or fresh:
            self._row(record, ledger)

    def end(
        self,
        status: str,
        record: StepRecord | None,
        ledger: SavingsLedger,
        checkpoint: str | None = None,
    ) -> None:
        """Write the last row and the status, and close the file.

        Args:
            status: ``finished``, ``stopped``, ``stopped as asked`` or ``failed: ...``.
            record: Record of the last full step, or None if there was none.
            ledger: Ledger of the run.
            checkpoint: Path of the checkpoint of a run that was asked to stop, or None.
        """
        if record is not None and record.step != self._rows:
            self._row(record, ledger)
        saved = {} if checkpoint is None else {"checkpoint": checkpoint}
        self._write("end", {"status": status, **saved, "ledger": ledger.summary()})
        self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            _unlock(file)
            file.close()

    def _row(self, record: StepRecord, ledger: SavingsLedger) -> None:
        losses, self._losses = self._losses, []
        row = {
            "full_steps": ledger.full_steps,
            "steps": ledger.steps,
            "predicted_steps": ledger.predicted_steps,
            "undone_steps": ledger.undone_steps,
            "corrected_steps": ledger.corrected_steps,
            "phase": record.phase.value,
            "loss": sum(losses) / len(losses) if losses else None,
            "skill": ledger.skill,
            "predicted_length": ledger.predicted_length,
            "skills": ledger.skills,
            "seconds": [ledger.full_seconds, ledger.correct_seconds, ledger.predict_seconds],
            "flops": [ledger.flops_per_step, ledger.flops_per_correction],
        }
        self._rows, self._written = record.step, monotonic()
        self._write("row", row)

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _opened(path)
            if not _lock(self._file):
                self._file.close()
                self.path = path.with_name(f"{path.stem}-{self._id[:8]}{path.suffix}")
                text = "Another run is writing to %s; the event log of this one is %s."
                logger.warning(text, path, self.path.name)
                self._file = _opened(self.path)
                _lock(self._file)
            _mend(self._file)
        except OSError as error:
            self._give_up(error)

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        found = {"type": kind, "run": self._id, "time": round(time(), 3), **finite(values)}
        if self._keep:
            self.run = told(self.run, self.path or Path(NAME), found)
        if self._file is None:
            return
        line = (json.dumps(found, default=str) + "\n").encode()
        try:
            if self._file.write(line) != len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        text = "%s cannot be written (%s); training goes on without it."
        logger.warning(text, self.path, error.strerror or error)
        with suppress(OSError):
            self.close()


def _opened(path: Path) -> Any:
    """Open a file to append to, without a buffer, so that a crash cuts off no line."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    number = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(EINVAL, "it is no regular file", str(path))
    return os.fdopen(number, "r+b", buffering=0)


def _mend(file: Any) -> None:
    """End a line that a crash has cut off, so that the next one can be read."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _lock(file: Any) -> bool:
    """Lock a file for this run; return False if another run, in whatever process, has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows: the runs share the file, and their lines name them
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def _unlock(file: Any) -> None:
    """Unlock a file, also for worker processes that have inherited it."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
