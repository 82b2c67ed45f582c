"""The log of a run, a file of JSON lines, and how it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.files import given_path, named

NAME = "hybrid_predict.jsonl"
"""Name of the log in the folder of the run's logger."""

SCHEMA = 3
"""Version of the lines, as the first line of a run has it."""

_LAST = 1e11
"""Latest time, in seconds since 1970, that can be shown as a date."""

_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


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


def find_log(name: str | Path) -> Path:
    """Find the newest log in or below a folder; the path of a file is returned as it is.

    Raises:
        ConfigError: If there is no log.
    """
    place = given_path("RUN", name)
    if os.path.isfile(place):
        return place
    expected = f"a folder with a {NAME} in or below it, or such a file"
    # A second run that trains in the same folder has a log of another name.
    with named("RUN", expected, name):
        paths = [path for path in place.rglob("hybrid_predict*.jsonl") if os.path.isfile(path)]
        if paths:
            return max(paths, key=os.path.getmtime)
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
    unread, other_schema = 0, None
    with named("RUN", "the log of a run", path), path.open("rb") as file:
        for line in filter(bytes.strip, file):
            try:
                entry = json.loads(line)
                if entry["type"] == "start":
                    same = entry["schema"] == SCHEMA
                    other_schema = None if same else int(entry["schema"])
                    log = _started(log, path, entry) if same else None
                elif log is not None and entry["run"] == log.start["run"]:
                    _add(log, entry)
                elif other_schema is None:
                    entry["run"]
            except _DAMAGE:
                unread += 1
    if log is None:
        lines = f"; {unread:,} of its lines cannot be read" if unread else ""
        why = f"It holds no run{lines}."
        if other_schema is not None:
            why = f"It has schema {other_schema}, this version reads {SCHEMA}."
        raise ConfigError("RUN", "the log of a run", str(path), why)
    log.unread = unread
    return log


def _started(log: RunLog | None, path: Path, entry: dict[str, Any]) -> RunLog:
    """Return the log of a new run, or of a resumed one with its earlier rows."""
    names = ("run", "time", "full_steps", "config", "plan", "environment")
    start = {name: entry[name] for name in names}
    start["audited"] = entry.get("audited") is not False
    _number(start["time"], _LAST)
    done = start["full_steps"]
    rows = log.rows if log is not None and done else []
    new = RunLog(path, start, [row for row in rows if row.ledger.full_steps <= done])
    if new.steps < 1:
        raise ValueError("a run without steps")
    return new


def _add(log: RunLog, entry: dict[str, Any]) -> None:
    """Add a line of a run to its log."""
    moment = _number(entry["time"], _LAST)
    if entry["type"] == "plan":  # the run's length has changed
        log.start = {**log.start, "plan": {**log.start["plan"], **entry["plan"]}}
    elif entry["type"] == "end":
        log.end = {"time": moment, "status": entry["status"]}
    elif entry["type"] == "row":
        loss = None if entry["loss"] is None else _number(entry["loss"])
        ledger = SavingsLedger.from_dict(entry["ledger"])
        log.rows.append(Row(moment, str(entry["phase"]), loss, ledger))
    else:
        raise ValueError(entry["type"])


def _number(value: Any, most: float = 1e100) -> float:
    """Return a number below ``most``, so that sums and squares are finite too."""
    if not abs(value) < most:
        raise ValueError(value)
    return float(value)
