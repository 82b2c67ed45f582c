"""A run as lines of text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap

from hybrid_predict.ledger import SavingsLedger, duration, percent
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.stop_request import is_asked

BLOCKS = "▁▂▃▄▅▆▇█"

EVENTS = 5
"""Number of latest events that are shown."""

NARROWEST = 40
"""Fewest columns that a run is drawn with."""


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a line of block characters; neighbours are averaged if there are too many.

    Args:
        values: Finite numbers in order.
        width: Most characters.
    """
    count = min(width, len(values))
    if not count:
        return ""
    edges = [round(k * len(values) / count) for k in range(count + 1)]
    parts = [values[a:b] for a, b in pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def lines(
    log: RunLog, width: int, now: float, metrics: Mapping[str, str] | None = None
) -> list[str]:
    """Return a run as lines of text.

    Args:
        log: Log of the run.
        width: Columns of the terminal; :data:`NARROWEST` at least are used.
        now: Present time, in seconds since 1970.
        metrics: Metrics of the user's own, as text by name.
    """
    width = max(NARROWEST, width)
    ledger, plan = log.ledger, log.start["plan"]
    losses = [row["loss"] for row in log.rows if row["loss"] is not None]
    shown = [f"{log.name}: {_status(log, now)}", "", _bar(ledger.steps, log.steps, width)]
    if losses:
        ends = f" {losses[0]:.4g} to {losses[-1]:.4g}"
        shown.append(f"loss    {sparkline(losses, width - 8 - len(ends))}{ends}")
    if metrics:
        shown.append(f"yours   {', '.join(f'{name} {value}' for name, value in metrics.items())}")
    phase = f", {log.rows[-1]['phase']}" if log.rows and log.end is None else ""
    shown += [
        f"steps   {ledger.full_steps:,} full + {ledger.predicted_steps:,} predicted "
        f"({plan['predicted']:,} planned), {ledger.undone_steps:,} undone{phase}",
        f"saving  {_saving(ledger)}",
        f"time    {_time(log)}",
    ]
    for kind, skill in ledger.skills.items():
        bound = f"at least {skill['lower']:.2f}, " if skill["windows"] > 1 else ""
        shown.append(f"skill   {kind} {skill['mean']:.2f} ({bound}{skill['windows']:g} windows)")
        shown.append(
            f"length  {kind} {skill['length']:.2f} of the drift (best fit {skill['fitted']:.2f}, "
            f"prediction error {skill['error']:.2f})"
        )
    if not ledger.skills:
        shown.append("skill   not known yet" if log.end is None else "skill   not known")
    for event in log.events[-EVENTS:]:
        shown.append(f"event   full step {event['full_steps']:,}: {event['reason']}")
    if log.end is not None and log.end.get("checkpoint"):
        shown.append(f"saved   {log.end['checkpoint']}")
    if log.unread:
        shown.append(f"damage  {unread_lines(log)}")
    wrapped = [wrap(printable(line), width, subsequent_indent=" " * 8) or [""] for line in shown]
    return [line for each in wrapped for line in each]


def unread_lines(log: RunLog) -> str:
    """Say how many lines of the file of a run cannot be read."""
    what = "1 line" if log.unread == 1 else f"{log.unread:,} lines"
    return f"{what} of the event log cannot be read"


def _status(log: RunLog, now: float) -> str:
    silent = now - log.seen
    if log.end is not None:
        return log.status
    if silent > 60:
        return f"nothing written for {duration(silent)}; it may have been killed"
    return "asked to stop" if is_asked(log.path, log.start["time"]) else log.status


def _bar(done: int, total: int, width: int) -> str:
    note = f" {done:,}/{total:,} steps"
    room = max(10, width - len(note))
    filled = round(room * min(1.0, done / total))
    return "█" * filled + "░" * (room - filled) + note


def _time(log: RunLog) -> str:
    """Return the time since the run was started or resumed, and an estimate of the rest."""
    taken = max(0.0, log.seen - float(log.start["time"]))
    done = [row["steps"] for row in log.rows if row["full_steps"] <= log.start["full_steps"]]
    made = log.ledger.steps - (done[-1] if done else 0)
    if log.end is not None or made <= 0:
        return duration(taken)
    left = taken * max(0, log.steps - log.ledger.steps) / made
    return f"{duration(taken)}, about {duration(left)} to come"


def _saving(ledger: SavingsLedger) -> str:
    parts = [f"{percent(ledger.saved_steps_fraction)} fewer full steps"]
    if ledger.predicted_steps:
        saved = ledger.estimated_seconds_saved
        what = "saved" if saved > 0 else "longer"
        parts.append(f"about {duration(abs(saved))} {what} on the host")
    return ", ".join([*parts, f"overhead {ledger.overhead}"])
