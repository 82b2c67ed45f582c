"""Reads the event log of a run, finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.errors import ConfigError

NAME = "hybrid_predict.jsonl"
"""Name of the event log in the folder of the run's logger."""

SCHEMA = 2

_COUNTS = ("full_steps", "steps", "corrected_steps", "predicted_steps", "undone_steps")


@dataclass
class RunLog:
    """The last run in an event log.

    Args:
        path: The file.
        start: Configuration, plan and environment.
        rows: Counts, loss, skill and seconds after some of the full steps, in order.
        events: Reasons, each with the full step at which it first happened.
        end: Status and ledger at the end; None while the run trains, or if it was killed.
    """

    path: Path
    start: Mapping[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
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
            **{name: row[name] for name in _COUNTS},
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
    place = Path(name).expanduser()
    if place.is_file():
        return place
    found = list(place.rglob(NAME)) if place.is_dir() else []
    if not found:
        remedy = (
            "HybridPredict writes one into the folder of a TensorBoard or CSV logger, or into "
            "HybridPredict(log_dir=...)."
        )
        expected = f"a folder with a {NAME} in or below it, or such a file"
        raise ConfigError("RUN", expected, str(name), remedy)
    return max(found, key=lambda path: path.stat().st_mtime)


def read_log(path: Path) -> RunLog:
    """Read the last run of a file.

    Damaged lines are skipped. If a resumed run repeats full steps, their earlier rows are dropped.

    Raises:
        ConfigError: If the file is not an event log of this version.
    """
    log: RunLog | None = None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict) and isinstance(found.get("type"), str):
                    log = told(log, path, found)
    except OSError as error:
        remedy = f"The system says: {error.strerror}."
        raise ConfigError("RUN", "the event log of a run", str(path), remedy) from error
    except (KeyError, TypeError, ValueError) as error:
        missing = f"a line lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigError("RUN", "the event log of a run", str(path), f"Why: {missing}.") from error
    if log is None:
        raise ConfigError("RUN", "the event log of a run", str(path), "It holds no run.")
    return log


def told(log: RunLog | None, path: Path, found: dict[str, Any]) -> RunLog:
    """Return a log with one more line.

    Args:
        log: The log so far; None before the first line.
        path: The file.
        found: The line.

    Raises:
        KeyError: If the line lacks an entry.
        ValueError: If the line cannot follow the ones before it.
    """
    kind = found["type"]
    if kind == "start":
        if found["schema"] != SCHEMA:
            raise ValueError(f"it has schema {found['schema']}, this version reads {SCHEMA}")
        return _started(log, path, found)
    if log is None:
        raise ValueError("it does not begin with the start of a run")
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
