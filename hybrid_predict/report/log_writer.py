"""Writes the log of a run while it trains."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from errno import EINVAL, ENOSPC
from pathlib import Path
from time import monotonic, time
from typing import Any, BinaryIO
from uuid import uuid4
from weakref import WeakSet

from hybrid_predict.errors import raise_interrupt
from hybrid_predict.ledger import SavingsLedger, StepRecord
from hybrid_predict.report.overview import Overview
from hybrid_predict.report.run_log import SCHEMA, Row, RunLog
from hybrid_predict.runs.runtime import environment, finite

ROWS = 500
"""Rows evenly spaced over a run; more are written if they are many seconds apart."""

_PATIENCE = 10.0

logger = logging.getLogger(__name__)

_WRITERS: WeakSet[LogWriter] = WeakSet()


class LogWriter:
    """Writes the log of a run; if its file cannot be written, training goes on without it.

    Every line names its run, and is written at once, as a whole. If another run is writing to the
    file, this one gets a file of its own in the same folder. Without a path the log is kept in
    memory only. Of more than ``4 * ROWS`` rows in memory, every second one is dropped.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self._begun = path, time()
        self.log = RunLog() if path is None else RunLog(path)
        self._file: BinaryIO | None = None
        self._losses: list[float] = []
        self._unwritten: tuple[StepRecord, SavingsLedger] | None = None
        self._events = 0
        self._written = monotonic()
        _WRITERS.add(self)

    def start(
        self, plan: Overview, config: Mapping[str, Any], full_steps: int = 0, audited: bool = True
    ) -> None:
        """Write the first line of the run; a resumed one has done ``full_steps`` before.

        ``audited`` tells whether ``hybrid-predict audit`` takes such a Trainer.
        """
        start = {
            "run": uuid4().hex,
            "time": round(self._begun, 3),
            "audited": audited,
            "full_steps": full_steps,
            "config": dict(config),
            "plan": asdict(plan),
            "environment": environment(),
        }
        self.log.start = finite(start)
        if self.path is not None:
            self._open(self.path)
        self._write("start", {"schema": SCHEMA, **self.log.start})

    def plan(self, plan: Overview) -> None:
        """Write the plan of a run whose length has changed on the way."""
        changed = finite(asdict(plan))
        self.log.start = {**self.log.start, "plan": changed}
        self._write("plan", {"time": round(time(), 3), "plan": changed})

    def step(self, record: StepRecord, ledger: SavingsLedger) -> None:
        """Take the record of a full step; write a row if one is due or an event is new."""
        self._unwritten = record, ledger
        if record.loss is not None:
            self._losses.append(record.loss)
        due = record.step % max(1, self.log.steps // ROWS) == 0
        late = monotonic() - self._written > _PATIENCE
        if due or late or len(ledger.events) != self._events:
            self._add_row(record, ledger)

    def end(self, status: str) -> None:
        """Write the last row and ``finished``, ``stopped`` or ``failed: ...``; close the file."""
        if self._unwritten is not None:
            self._add_row(*self._unwritten)
        self.log.end = {"time": round(time(), 3), "status": status}
        self._write("end", self.log.end)
        self.close()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _add_row(self, record: StepRecord, ledger: SavingsLedger) -> None:
        losses, self._losses, self._unwritten = self._losses, [], None
        loss = sum(losses) / len(losses) if losses else None
        row = Row(round(time(), 3), record.phase.value, loss, ledger.copy())
        self.log.rows.append(row)
        if len(self.log.rows) > 4 * ROWS:
            del self.log.rows[:-1:2]
        self._events, self._written = len(ledger.events), monotonic()
        self._write("row", {**vars(row), "ledger": ledger.summary()})

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a pipe would wait for a reader
                raise OSError(EINVAL, "it is no regular file")
            # Without a buffer a crash cuts off no line.
            self._file = path.open("ab", buffering=0)
            if not _lock(self._file):
                self._file.close()
                name = f"{path.stem}-{self.log.start['run'][:8]}{path.suffix}"
                logger.warning("Another run is writing to %s; this one writes to %s.", path, name)
                self.path = self.log.path = path.with_name(name)
                self._file = self.path.open("ab", buffering=0)
                _lock(self._file)
            if self._file.tell():
                self._file.write(b"\n")  # ends a line that a crash has cut off
        except OSError as error:
            self._give_up(error)

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        entry = finite({"type": kind, "run": self.log.start["run"], **values})
        line = (json.dumps(entry, default=str) + "\n").encode()
        try:
            if self._file.write(line) != len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        raise_interrupt(error)  # a time limit of the user is an OSError too
        text = "%s cannot be written (%s); training goes on without it."
        logger.warning(text, self.path, error.strerror or error)
        with suppress(OSError):
            self.close()


def _lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return False if another run, in any process, has done so."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass
    return True


def _close_in_child() -> None:
    """Close inherited files, as a worker that outlives a killed run would keep them locked."""
    for writer in _WRITERS:
        writer.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)
