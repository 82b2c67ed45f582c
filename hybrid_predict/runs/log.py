"""The log of a run, a file of JSON lines: how it is written while the run trains, and read."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from errno import ENOSPC
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from hybrid_predict.errors import ConfigError, raise_interrupt
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.files import given_path, named
from hybrid_predict.runs.runtime import environment, finite

if TYPE_CHECKING:
    from hybrid_predict.ledger import StepRecord
    from hybrid_predict.runs.overview import Overview

NAME = "hybrid_predict.jsonl"
"""Name of the log in the folder of the run's logger."""

_NAMES = "hybrid_predict*.jsonl"
"""Names of the logs of several runs in one folder."""

SCHEMA = 3
"""Version of the lines, as the first line of a run has it."""

ROWS = 500
"""Rows evenly spaced over a run; more are written if they are many seconds apart."""

_PATIENCE = 10.0

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
            done before it was resumed, ``config``, ``plan``, ``environment``, and whether its
            Trainer can be ``audited``. Empty before the first full step.
        rows: The run after some of its full steps, in order.
        end: ``time`` and ``status`` at the end; None while the run trains, or if it was killed.
        unread: Number of lines of the file that cannot be read.
    """

    path: Path = Path(NAME)
    start: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    end: Mapping[str, Any] | None = None
    unread: int = 0

    @property
    def place(self) -> Path:
        """What to pass to commands: the folder of the file, or a file of another name."""
        return self.path.parent if self.path.name == NAME else self.path

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
    def seen(self) -> float:
        """Time of the last line, in seconds since 1970."""
        last = self.rows[-1].time if self.rows else self.start["time"]
        return float(last if self.end is None else self.end["time"])

    @property
    def ledger(self) -> SavingsLedger:
        """Ledger as of the last row."""
        return self.rows[-1].ledger if self.rows else SavingsLedger()


class LogWriter:
    """Writes the log of a run; if its file cannot be written, training goes on without it.

    Every line is written at once, as a whole. A new run never writes to a file that exists: it gets
    another name in the same folder. A resumed run continues the newest log of the folder. Without
    a path the log is kept in memory only. Of more than ``4 * ROWS`` rows in memory, every second
    one is dropped.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.log = RunLog() if path is None else RunLog(path)
        self._begun = time()
        self._file: BinaryIO | None = None
        self._losses: list[float] = []
        self._unwritten: tuple[StepRecord, SavingsLedger] | None = None
        self._events = 0
        self._written = monotonic()

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
            try:
                self._open(self.path, resumed=full_steps > 0)
            except OSError as error:
                self._give_up(error)
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
        file = self._file
        self._file = None
        if file is not None:
            file.close()

    def _add_row(self, record: StepRecord, ledger: SavingsLedger) -> None:
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        row = Row(round(time(), 3), record.phase.value, loss, ledger.copy())
        self.log.rows.append(row)
        if len(self.log.rows) > 4 * ROWS:
            del self.log.rows[:-1:2]
        self._losses = []
        self._unwritten = None
        self._events = len(ledger.events)
        self._written = monotonic()
        self._write("row", {**vars(row), "ledger": ledger.summary()})

    def _open(self, path: Path, resumed: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = _newest(path.parent.glob(_NAMES)) if resumed else None
        if known is not None:
            path = known
        elif os.path.lexists(path):
            path = path.with_name(f"{path.stem}-{self.log.start['run'][:8]}{path.suffix}")
        self.path = self.log.path = path
        path.touch(exist_ok=known is not None)
        # Without a buffer a crash cuts off no line.
        self._file = path.open("ab", buffering=0)
        if known is not None:
            self._file.write(b"\n")  # ends a line that a crash has cut off

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


def _newest(paths: Iterable[Path]) -> Path | None:
    """Return the file that was written last; None if there is none."""
    return max(filter(os.path.isfile, paths), key=os.path.getmtime, default=None)


def find_log(name: str | Path) -> Path:
    """Find the newest log in or below a folder; the path of a file is returned as it is.

    Raises:
        ConfigError: If there is no log.
    """
    place = given_path("RUN", name)
    if os.path.isfile(place):
        return place
    expected = f"a folder with a {NAME} in or below it, or such a file"
    with named("RUN", expected, name):
        if (path := _newest(place.rglob(_NAMES))) is not None:
            return path
    remedy = (
        "HybridPredict writes one into the folder of a TensorBoard or CSV logger, or into "
        "HybridPredict(log_dir=...)."
    )
    raise ConfigError("RUN", expected, str(name), remedy)


def read_log(path: Path) -> RunLog:
    """Read the run of a file that was started last.

    Lines that cannot be read are counted; lines of other runs, and runs of other versions of the
    package, are skipped. If a resumed run repeats full steps, their earlier rows are dropped.

    Raises:
        ConfigError: If the file is not a run log of this version.
    """
    log: RunLog | None = None
    unread = 0
    schema = SCHEMA
    with named("RUN", "the log of a run", path), path.open("rb") as file:
        for line in filter(bytes.strip, file):
            try:
                entry = json.loads(line)
                if entry["type"] == "start":
                    schema = int(entry["schema"])
                    log = _started(log, path, entry) if schema == SCHEMA else None
                elif log is not None and entry["run"] == log.start["run"]:
                    _add(log, entry)
            except Exception:  # a crash, a full disk or another program may have left anything
                unread += 1
    if log is None:
        why = f"It holds no run; {unread:,} of its lines cannot be read."
        if schema != SCHEMA:
            why = f"It has schema {schema}, this version reads {SCHEMA}."
        raise ConfigError("RUN", "the log of a run", str(path), why)
    log.unread = unread
    return log


def _started(log: RunLog | None, path: Path, entry: dict[str, Any]) -> RunLog:
    """Return the log of a new run, or of a resumed one with its earlier rows."""
    names = ("run", "time", "full_steps", "config", "plan", "environment")
    start = {name: entry[name] for name in names}
    start["audited"] = entry.get("audited") is not False
    done = start["full_steps"]
    earlier = [] if log is None or not done else log.rows
    new = RunLog(path, start, [row for row in earlier if row.ledger.full_steps <= done])
    if new.steps < 1:
        raise ValueError("a run without steps")
    return new


def _add(log: RunLog, entry: dict[str, Any]) -> None:
    """Add a line of a run to its log."""
    moment = float(entry["time"])
    if entry["type"] == "plan":  # the run's length has changed
        log.start = {**log.start, "plan": {**log.start["plan"], **entry["plan"]}}
    elif entry["type"] == "end":
        log.end = {"time": moment, "status": entry["status"]}
    else:
        loss = None if entry["loss"] is None else float(entry["loss"])
        ledger = SavingsLedger.from_dict(entry["ledger"])
        log.rows.append(Row(moment, str(entry["phase"]), loss, ledger))
