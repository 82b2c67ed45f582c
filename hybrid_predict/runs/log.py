"""The log of a run, a file of JSON lines: how it is written while the run trains, and read."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hybrid_predict.errors import ConfigError, raise_interrupt
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.files import given_path, named
from hybrid_predict.runs.runtime import (
    append_json,
    environment,
    finite,
    json_line,
    read_json_lines,
)

if TYPE_CHECKING:
    from hybrid_predict.ledger import StepRecord
    from hybrid_predict.runs.overview import Overview

NAME = "hybrid_predict.jsonl"
"""Name of the log in the folder of the run's logger."""

SCHEMA = 4
"""Version of the lines, as the first line of a run has it."""

ROWS = 1000
"""Rows evenly spaced over a run; more are written for new events."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """A run after one of its full steps.

    Args:
        time: Seconds since 1970.
        phase: Phase of the full step.
        loss: Mean training loss since the row before, or None if it is unknown.
        ledger: The ledger at that time.
    """

    time: float
    phase: str
    loss: float | None
    ledger: SavingsLedger


@dataclass
class RunLog:
    """The log of one run.

    Args:
        path: The file, which need not exist.
        start: The first line: ``run`` (its identifier), ``time`` at which it began, ``full_steps``
            done before it was resumed, ``config``, ``plan`` and ``environment``. Empty before the
            first full step.
        rows: The run after some of its full steps, in order.
        end: ``time`` and ``status`` at the end; None while the run trains, or if it was killed.
    """

    path: Path = Path(NAME)
    start: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    end: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Name of the run on pages: the last two folders of its path."""
        return "/".join(self.path.resolve().parent.parts[-2:])

    @property
    def steps(self) -> int:
        """Length of the run in steps."""
        return int(self.start["plan"]["steps"])

    @property
    def status(self) -> str:
        """``running``, or the status at the end."""
        return "running" if self.end is None else str(self.end["status"])

    @property
    def losses(self) -> str:
        """The first and the last training loss that are known, in words; empty if none is."""
        known = [row.loss for row in self.rows if row.loss is not None]
        return f"{known[0]:.4g} to {known[-1]:.4g}" if known else ""

    @property
    def seen(self) -> float:
        """Time of the last line, in seconds since 1970."""
        last = self.rows[-1].time if self.rows else self.start["time"]
        return float(last if self.end is None else self.end["time"])

    @property
    def ledger(self) -> SavingsLedger:
        """Ledger as of the last row."""
        return self.rows[-1].ledger if self.rows else SavingsLedger()

    def entry(self, row: Row) -> dict[str, Any]:
        """Return a row as a line of the file has it."""
        ledger = row.ledger.summary()
        return {"type": "row", "run": self.start["run"], **vars(row), "ledger": ledger}

    def text(self) -> str:
        """Return the log as a file of it has it; empty before the first full step."""
        entries = [self.start, *map(self.entry, self.rows), self.end]
        return "".join(json_line(entry) for entry in entries if entry)


class LogWriter:
    """Writes the log of a run; if its file cannot be written, training goes on without it.

    Every line is written at once. Runs in the same folder append to the same file, of which readers
    show the one that was started last. Without a path the log is kept in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self.log = RunLog() if path is None else RunLog(path)
        self.path = None if path is None else path.absolute()
        self._losses: list[float] = []
        self._last: tuple[StepRecord, SavingsLedger] | None = None
        self._events = 0

    def start(self, plan: Overview, config: Mapping[str, Any], full_steps: int = 0) -> None:
        """Write the first line of the run; a resumed one has done ``full_steps`` before.

        It is written again if the run's length changes on the way.
        """
        start = {
            "type": "start",
            "schema": SCHEMA,
            "run": uuid4().hex,
            "time": round(time(), 3),
            "full_steps": full_steps,
            "config": dict(config),
            "plan": asdict(plan),
            "environment": environment(),
        }
        self.log.start = finite(start)
        self._write(self.log.start)

    def step(self, record: StepRecord, ledger: SavingsLedger) -> None:
        """Take the record of a full step; write a row if one is due or an event is new."""
        self._last = record, ledger
        if record.loss is not None:
            self._losses.append(record.loss)
        due = record.step % max(1, self.log.steps // ROWS) == 0
        if due or len(ledger.events) != self._events:
            self._add_row(record, ledger)

    def end(self, status: str) -> None:
        """Write the last row and ``finished``, ``stopped`` or ``failed: ...``.

        A validation after the last row may have changed the ledger.
        """
        if self._last is not None and self._last[1] != self.log.ledger:
            self._add_row(*self._last)
        run = self.log.start["run"]
        self.log.end = {"type": "end", "run": run, "time": round(time(), 3), "status": status}
        self._write(self.log.end)

    def _add_row(self, record: StepRecord, ledger: SavingsLedger) -> None:
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        row = Row(round(time(), 3), record.phase.value, loss, ledger.copy())
        self.log.rows.append(row)
        self._losses = []
        self._events = len(ledger.events)
        self._write(self.log.entry(row))

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_json(self.path, entry)
        except OSError as error:
            raise_interrupt(error)  # a time limit of the user is an OSError too
            text = "%s cannot be written (%s); training goes on without it."
            logger.warning(text, self.path, error.strerror or error)
            self.path = None


def find_log(name: str | Path) -> Path:
    """Find the newest log in or below a folder; the path of a file is returned as it is.

    Raises:
        ConfigError: If there is no log.
    """
    place = given_path("RUN", name)
    if os.path.isfile(place):
        return place
    if found := [path for path in place.rglob(NAME) if path.is_file()]:
        return max(found, key=os.path.getmtime)
    expected = f"a folder with a {NAME} in or below it, or such a file"
    remedy = (
        "HybridPredict writes one into the folder of a TensorBoard or CSV logger, or into "
        "HybridPredict(log_dir=...)."
    )
    raise ConfigError("RUN", expected, str(name), remedy)


def read_log(path: Path) -> RunLog:
    """Read the run of a file that was started last.

    A resumed run keeps the rows of the run before it, up to the full step from which it goes on.
    Lines that a crash has cut off, and lines of other runs, are skipped.

    Raises:
        ConfigError: If the file is not a run log of this version.
    """
    log = RunLog(path)
    with named("RUN", "the log of a run", path):
        entries = [entry for entry in read_json_lines(path) if entry is not None]
    try:
        for entry in entries:
            kind = entry["type"]
            if kind == "start":
                known = entry["schema"] == SCHEMA
                kept = [row for row in log.rows if row.ledger.full_steps <= entry["full_steps"]]
                log = RunLog(path, entry, kept) if known else RunLog(path)
            elif entry["run"] != log.start.get("run"):
                continue
            elif kind == "end":
                log.end = entry
            else:
                ledger = SavingsLedger.from_dict(entry["ledger"])
                log.rows.append(Row(entry["time"], entry["phase"], entry["loss"], ledger))
        if not log.start:
            raise ValueError("no run that this version has written")
    except (LookupError, TypeError, ValueError) as error:
        remedy = f"Reading it failed with: {error!r}."
        raise ConfigError("RUN", "the log of a run", str(path), remedy) from error
    return log
