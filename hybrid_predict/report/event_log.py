"""Writes the event log of a run, a file of JSON lines, while it trains."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.engine.overview import Overview
from hybrid_predict.engine.record import StepRecord
from hybrid_predict.report.run_log import NAME, SCHEMA, RunLog, told
from hybrid_predict.runs.runtime import environment, finite

ROWS = 500
"""Rows evenly spaced over a run; more are written if they are many seconds apart."""

_PATIENCE, _BUFFERED = 10.0, 1.0

logger = logging.getLogger(__name__)


class EventLog:
    """Appends one run to a file; if the file cannot be written, training goes on without it.

    A crash loses at most the lines of the last second.

    Args:
        path: The file; it and its folder are created if missing. None writes no file.
        plan: Plan of the run.
        config: Configuration of the run, as plain data.
        full_steps: Full steps done before a resumed run goes on; 0 for a new run.
        keep: Whether to keep the log in ``run`` as well.

    Attributes:
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
        self._written = self._flushed = monotonic()
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
        self._write("start", start, flush=True)

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
            self._row(record, ledger, flush=fresh or monotonic() - self._flushed > _BUFFERED)

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
        self._write("end", {"status": status, **saved, "ledger": ledger.summary()}, flush=True)
        self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _row(self, record: StepRecord, ledger: SavingsLedger, *, flush: bool = False) -> None:
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
        self._write("row", row, flush=flush)

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
            self._mend()
        except OSError as error:
            self._give_up(error)

    def _mend(self) -> None:
        """End a line that a crash has cut off, so that the next one can be read."""
        end = self._file.tell()
        if end:
            self._file.seek(end - 1)
            if self._file.read() != "\n":
                self._file.write("\n")

    def _write(self, kind: str, values: dict[str, Any], *, flush: bool = False) -> None:
        found = {"type": kind, "time": round(time(), 3), **finite(values)}
        if self._keep:
            self.run = told(self.run, self.path or Path(NAME), found)
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(found, default=str) + "\n")
            if flush:
                self._file.flush()
                self._flushed = monotonic()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        text = "%s cannot be written (%s); training goes on without it."
        logger.warning(text, self.path, error.strerror or error)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # the buffer cannot be written either
                file.close()
