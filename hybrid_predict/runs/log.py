"""The log of a run, a file of JSON lines: written while it trains, read, and told in words."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from time import time
from typing import TYPE_CHECKING, Any

from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import FELL_BACK, SavingsLedger, duration, percent, remarks
from hybrid_predict.policy.overfitting import OVERFITS
from hybrid_predict.runs.files import given_path, printable
from hybrid_predict.runs.runtime import (
    append_line,
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

LEAST_NOTED = 0.05
"""Smaller shares of a run's seconds, saved or lost, are not told: they vary by more."""

ONE_RUN = (
    "One run cannot show whether the loss is as good as that of plain training: nothing here was "
    "trained without the plug-in. It shows what was spent."
)
"""Sentence on what a single run can show."""

PROOF = "hybrid-predict audit (of a Lightning model), or a few seeds with and without the callback"
"""What shows whether quality is kept."""


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
    """The log of one run, written line by line while it trains, or read from a file.

    Runs in the same folder append to the same file, one after the other, by one process at a time;
    readers show the one that was started last.

    Args:
        path: The file, which need not exist; None keeps the log in memory only.
        start: The first line: ``time`` at which the run began, ``full_steps`` done before it was
            resumed, ``config``, ``plan`` and ``environment``. Empty before the first full step.
        rows: The run after some of its full steps, in order.
        end: ``time`` and ``status`` at the end; None while the run trains, or if it was killed.
        text: The lines that were added here, as the file has them.
    """

    path: Path | None = None
    start: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    end: Mapping[str, Any] | None = None
    text: str = field(default="", repr=False, compare=False)
    _losses: list[float] = field(default_factory=list, repr=False, compare=False)
    _last: tuple[StepRecord, SavingsLedger] | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the run on pages: the last two folders of its path."""
        return "/".join((self.path or Path(NAME)).resolve().parent.parts[-2:])

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
        return f"{known[0]:.4g} to {known[-1]:.4g}" if len(known) > 1 else ""

    @property
    def ledger(self) -> SavingsLedger:
        """Ledger as of the last row."""
        return self.rows[-1].ledger if self.rows else SavingsLedger()

    def begin(self, plan: Overview, config: Mapping[str, Any], full_steps: int = 0) -> None:
        """Add the first line of a run; it is added again if the run's length changes on the way.

        Raises:
            OSError: If the file cannot be written; the same holds for the other lines.
        """
        self.start = _entry(
            "start",
            schema=SCHEMA,
            full_steps=full_steps,
            config=dict(config),
            plan=asdict(plan),
            environment=environment(),
        )
        self._write(self.start)

    def step(self, record: StepRecord, ledger: SavingsLedger) -> None:
        """Take the record of a full step; add a row if one is due or an event is new."""
        self._last = record, ledger
        if record.loss is not None:
            self._losses.append(record.loss)
        due = record.step % max(1, self.steps // ROWS) == 0
        if due or len(ledger.events) != len(self.ledger.events):
            self._add_row(record, ledger)

    def close(self, status: str) -> None:
        """Add the last row and ``finished``, ``stopped`` or ``failed: ...``.

        A validation after the last row may have changed the ledger.
        """
        if self._last is not None and self._last[1] != self.ledger:
            self._add_row(*self._last)
        self.end = _entry("end", status=status)
        self._write(self.end)

    def _add_row(self, record: StepRecord, ledger: SavingsLedger) -> None:
        loss = fmean(self._losses) if self._losses else None
        self._losses.clear()
        phase = record.phase.value
        entry = _entry("row", phase=phase, loss=loss, ledger=ledger.summary())
        self.rows.append(Row(entry["time"], phase, loss, ledger.copy()))
        self._write(entry)

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = json_line(entry)
        self.text += line
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, line)


def _entry(kind: str, **values: Any) -> dict[str, Any]:
    entry: dict[str, Any] = finite({"type": kind, "time": round(time(), 3), **values})
    return entry


def find_logs(name: str | Path) -> list[Path]:
    """Find the logs in or below a folder, the newest first; a file is its own only log.

    Raises:
        ConfigError: If there is no log.
    """
    place = given_path(name)
    if os.path.isfile(place):
        return [place]
    if found := [path for path in place.rglob(NAME) if path.is_file()]:
        return sorted(found, key=os.path.getmtime, reverse=True)
    expected = f"a folder with a {NAME} in or below it, or such a file"
    remedy = "A run with a TensorBoard or CSV logger has one, or HybridPredict(log_dir=...) does."
    if not place.exists():
        remedy = f"There is no such folder in {Path.cwd()}."
    raise ConfigError("RUN", expected, str(name), remedy)


def read_log(path: Path) -> RunLog:
    """Read the run of a file that was started last.

    A resumed run keeps the rows of the run before it, up to the full step from which it goes on.
    Lines that a crash has cut off are skipped.

    Raises:
        ConfigError: If the file is not a run log of this version.
    """
    log = RunLog(path)
    try:
        for entry in filter(None, read_json_lines(path)):
            if entry["type"] == "start":
                kept = [row for row in log.rows if row.ledger.full_steps <= entry["full_steps"]]
                log = RunLog(path, entry, kept)
            elif log.start["schema"] == SCHEMA and entry["type"] == "end":
                log.end = entry
            elif log.start["schema"] == SCHEMA:
                ledger = SavingsLedger.from_dict(entry["ledger"])
                log.rows.append(Row(entry["time"], entry["phase"], entry["loss"], ledger))
        if log.start.get("schema") != SCHEMA:
            raise ValueError("no run that this version has written")
    except (OSError, LookupError, TypeError, ValueError) as error:
        remedy = f"Reading it failed with {error!r}: name another run, or remove the damaged line."
        raise ConfigError("RUN", "the log of a run", str(path), remedy) from error
    return log


def finding(log: RunLog) -> str:
    """Return a short line on what a run has lost or saved; its events say more.

    Only a run that has made all its steps has taken fewer full steps than planned: what plain
    training would have taken until it stops is not known.
    """
    ledger = log.ledger
    if not ledger.full_steps:
        return "nothing was trained yet"
    briefly = [re.split(r": | \(", remark)[0] for remark in remarks(ledger)]
    return printable("; ".join([*_spent(log), *briefly]))


def _spent(log: RunLog) -> list[str]:
    ledger = log.ledger
    share = percent(ledger.saved_steps_fraction) if ledger.predicted_steps else "none"
    saved = ledger.estimated_seconds_saved
    notable = abs(saved) >= LEAST_NOTED * ledger.plain_seconds
    lost = []
    if notable and saved < 0.0 and log.end is not None:
        lost.append(f"about {duration(-saved)} longer on the host than plain training")
    if ledger.steps < log.steps:
        how = "running," if log.end is None else f"{log.status.partition(':')[0]} after"
        text = f"{how} {ledger.steps:,} of {log.steps:,} steps, {share} of them predicted"
        return [*lost, text]
    text = f"{ledger.full_steps:,} full steps, none predicted"
    if ledger.predicted_steps:
        text = f"{share} fewer full steps"
    if notable and saved > 0.0:
        text += f", about {duration(saved)} saved on the host"
    return [*lost, text]


def advice(log: RunLog) -> list[str]:
    """Return arguments that help against what has happened, in lines to copy."""
    ledger = log.ledger
    lines = []
    if share := re.search(r"max_overhead=[\d.]*\d", ledger.last_event(FELL_BACK)[1]):
        lines.append(f"{share[0]}  # for the callback: corrects nevertheless, in slower steps")
    if ledger.best is not None and ledger.last_event(OVERFITS)[1]:
        if log.start["config"].get("on_overfit") != "stop":
            lines.append('on_overfit="stop"  # for the callback: ends a run that overfits')
        step = int(ledger.best["step"])
        lines.append(f"max_steps={step}  # for the Trainer: a schedule that ends at the best step")
    return lines


def facts(log: RunLog) -> dict[str, str]:
    """Return what a run found, counted and measured, by name; what is unknown is left out."""
    ledger = log.ledger
    plan = log.start["plan"]
    last = log.end or (vars(log.rows[-1]) if log.rows else log.start)
    planned = f"{'at most ' if plan['paced'] else ''}{plan['predicted']:,}"
    counts = f"{ledger.predicted_steps:,} of {planned}, {ledger.undone_steps:,} undone"
    written = datetime.fromtimestamp(last["time"]).strftime("%Y-%m-%d %H:%M:%S")
    plain = duration(ledger.plain_seconds)
    shown = {
        "finding": finding(log),
        "status": f"{log.status}, last written {written}",
        "steps": f"{ledger.steps:,} of {log.steps:,}",
        "full steps": f"{ledger.full_steps:,}, {ledger.corrected_steps:,} corrected",
        "predicted steps": counts,
        "seconds": f"{duration(ledger.full_seconds)} in full steps, "
        f"{duration(ledger.overhead_seconds)} in the plug-in; plain training: about {plain}",
    }
    if ledger.best is not None:
        shown["validation"] = ledger.best_validation
    if log.losses:
        shown["training loss"] = log.losses
    if ledger.skills:
        found = ", ".join(f"{kind} {each['mean']:.2f}" for kind, each in ledger.skills.items())
        shown["skill"] = f"{found} (1: forecasts are perfect, 0: no better than chance)"
    return shown


def events(log: RunLog) -> list[str]:
    """Return the events of a run, each with the full steps where it happened."""
    return [f"{when(event)}: {event['reason']}" for event in log.ledger.events]


def when(event: Mapping[str, Any]) -> str:
    """Return in which full steps an event of a ledger happened, and how often."""
    first = event["step"]
    last = event.get("last", first)
    if last == first:
        return f"full step {first:,}"
    return f"full steps {first:,} to {last:,}, {event['count']:,} times"
