"""Reads the event log of a run, finished or not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.line_file import mappings
from hybrid_predict.report.log_lines import COUNTS, SCHEMA, is_line

NAME = "hybrid_predict.jsonl"
"""Name of the event log in the folder of the run's logger."""

_NAMES = "hybrid_predict*.jsonl"
"""Names of event logs: a second run that trains in the same folder has one of its own."""


@dataclass
class RunLog:
    """The last run in an event log.

    Args:
        path: The file.
        start: Configuration, plan and environment.
        rows: Counts, loss, skill and seconds after some of the full steps, in order.
        events: Reasons, each with the full step at which it first happened.
        end: Status and ledger at the end; None while the run trains, or if it was killed.
        unread: Number of lines of the file that cannot be read.
    """

    path: Path
    start: Mapping[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    end: Mapping[str, Any] | None = None
    unread: int = 0

    @property
    def place(self) -> Path:
        """What to give to commands: the folder of the file, or a file of another name."""
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
        last = self.end or (self.rows[-1] if self.rows else self.start)
        return float(last["time"])

    @property
    def ledger(self) -> SavingsLedger:
        """Ledger as of the last row."""
        if not self.rows:
            return SavingsLedger()
        row = self.rows[-1]
        seconds, flops = row["seconds"], row["flops"]
        return SavingsLedger(
            **{name: row[name] for name in COUNTS},
            skill=row["skill"],
            predicted_length=row["predicted_length"],
            skills=row["skills"],
            full_seconds=seconds[0],
            correct_seconds=seconds[1],
            predict_seconds=seconds[2],
            flops_per_step=flops[0],
            flops_per_correction=flops[1],
        )


def find_log(name: str | Path) -> Path:
    """Find the newest event log in or below a folder; the path of a file is returned as it is.

    Raises:
        ConfigError: If there is no event log.
    """
    place = Path(os.path.expanduser(name))
    if os.path.isfile(place):
        return place
    times = [(_written(path), path) for path in place.rglob(_NAMES)]
    found = [(time, path) for time, path in times if time is not None]
    if not found:
        remedy = (
            "HybridPredict writes one into the folder of a TensorBoard or CSV logger, or into "
            "HybridPredict(log_dir=...)."
        )
        expected = f"a folder with a {NAME} in or below it, or such a file"
        raise ConfigError("RUN", expected, str(name), remedy)
    return max(found)[1]


def _written(path: Path) -> float | None:
    """Return when a file was last written; None for what is no file, such as a pipe."""
    try:
        return path.stat().st_mtime if os.path.isfile(path) else None
    except OSError:  # it has just been removed
        return None


def read_log(path: Path) -> RunLog:
    """Read the run of a file that was started last.

    Lines that cannot be read are counted; lines of other runs, and runs of other versions of the
    package, are passed over. If a resumed run repeats full steps, their earlier rows are dropped.

    Raises:
        ConfigError: If the file is not an event log of this version.
    """
    log: RunLog | None = None
    unread, other = 0, None
    try:
        for found in mappings(path):
            if found is not None and is_line(found) and found["type"] == "start":
                other = None if found["schema"] == SCHEMA else found["schema"]
                log = None if other else told(log, path, found)
            elif other is None and (log is None or found is None or not is_line(found)):
                unread += 1
            elif log is not None and found is not None:
                log = told(log, path, found)
    except OSError as error:
        remedy = f"The system says: {error.strerror}."
        raise ConfigError("RUN", "the event log of a run", str(path), remedy) from error
    if log is None:
        lines = f"; {unread:,} of its lines cannot be read" if unread else ""
        why = f"It has schema {other}, this version reads {SCHEMA}." if other else ""
        why = why or f"It holds no run{lines}."
        raise ConfigError("RUN", "the event log of a run", str(path), why)
    log.unread = unread
    return log


def told(log: RunLog | None, path: Path, found: dict[str, Any]) -> RunLog:
    """Return a log with one more line; a line of another run changes nothing.

    Args:
        log: The log so far; None before the first line, which is the start of a run.
        path: The file.
        found: The line.
    """
    kind = found["type"]
    if kind == "start":
        return _started(log, path, found)
    assert log is not None
    if found.get("run") != log.start.get("run"):
        return log  # two runs wrote to one file at the same time
    if kind == "row":
        log.rows.append(found)
    elif kind == "event":
        log.events.append(found)
    else:
        log.end = found
    return log


def _started(log: RunLog | None, path: Path, start: dict[str, Any]) -> RunLog:
    """Return the log of a new run, or of a resumed one with its earlier rows."""
    done = start["full_steps"]
    if log is None or not done:
        return RunLog(path, start)
    rows = [row for row in log.rows if row["full_steps"] <= done]
    return RunLog(path, start, rows)  # a resumed run repeats its events
