"""What a run has cost and saved, as text for pages and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from textwrap import wrap

from hybrid_predict.ledger import (
    SavingsLedger,
    duration,
    percent,
    persistence,
    why_unpredicted,
)
from hybrid_predict.policy.policy import NOT_LASTING
from hybrid_predict.runs.files import printable
from hybrid_predict.runs.log import RunLog

ONE_RUN = (
    "One run cannot show whether the loss is as good as that of plain training: nothing here was "
    "trained without the plug-in. It shows what was spent."
)
"""Sentence on what a single run can show."""

NEXT = "hybrid-predict audit config.yaml --plan"
"""Command that estimates the time of an audit."""

NO_AUDIT = "training from a few seeds, with and without the callback (audits need Lightning)"
"""What to do where no audit takes the Trainer."""

_SILENT = 60.0
"""Seconds without a line after which a run may have been killed."""

_BLOCKS = "▁▂▃▄▅▆▇█"

_NARROWEST = 40
"""Fewest columns that a run is drawn with."""


def finding(log: RunLog) -> str:
    """Return a line on the full steps and the host seconds that a run saved."""
    ledger = log.ledger
    so_far = "so far " if log.end is None else ""
    full_steps = f"{so_far}{ledger.full_steps:,} full steps"
    if not ledger.full_steps:
        return "nothing was trained yet"
    if ledger.fell_back:
        return f"{full_steps}; {printable(ledger.fell_back)}"
    if not log.start["plan"]["predicted"]:
        return f"{full_steps}; no predicted steps were planned"
    if ledger.predicted_steps:
        return f"{so_far}{_saving(ledger)}"
    silent = NOT_LASTING if log.start["plan"].get("paced") else "no predicted steps were made"
    if ledger.steps < log.start["plan"]["warmup"]:
        silent = "no predicted steps: the warm-up is not over"
    return f"{so_far}{printable(why_unpredicted(ledger.events) or silent)}; nothing was saved"


def proof(logs: Sequence[RunLog]) -> str:
    """Return what shows whether quality is kept: a command, unless no run could be audited."""
    return NEXT if any(log.start["audited"] for log in logs) else NO_AUDIT


def facts(log: RunLog) -> dict[str, str]:
    """Return the counts and measurements of a run as text by name; what is unknown is left out."""
    ledger = log.ledger
    planned = f"{log.start['plan']['predicted']:,}"
    planned = f"at most {planned}" if log.start["plan"].get("paced") else f"{planned} planned"
    shown = {
        "written": datetime.fromtimestamp(log.seen).strftime("%Y-%m-%d %H:%M:%S"),
        "steps": f"{ledger.steps:,} of {log.steps:,}",
        "full steps": f"{ledger.full_steps:,}, {ledger.corrected_steps:,} corrected",
        "predicted": f"{ledger.predicted_steps:,} ({planned}), {ledger.undone_steps:,} undone",
    }
    if ledger.predicted_steps:
        shown["per full step"] = f"{ledger.predicted_per_full_step:.2f} predicted steps"
        shown["mean length"] = f"{ledger.mean_length:.2f} of the drift"
        shown["saving"] = _saving(ledger)
    shown["wall time"] = _time(log)
    shown["seconds"] = (
        f"{duration(ledger.full_seconds)} in full steps, {duration(ledger.overhead_seconds)} in "
        "the plug-in, on the host"
    )
    shown["overhead"] = ledger.overhead
    if ledger.correction_share is not None and ledger.corrected_steps:
        shown["correcting"] = f"{percent(ledger.correction_share)} of a full step's operations"
    if losses := _losses(log):
        shown["loss"] = f"{losses[0]:.4g} to {losses[-1]:.4g}"
    for kind, skill in ledger.skills.items():
        bound = f"at least {skill['lower']:.2f}, " if skill["windows"] > 1 else ""
        shown[f"skill, {kind}"] = f"{skill['mean']:.2f} ({bound}{skill['windows']:g} windows)"
        shown[f"length, {kind}"] = (
            f"{skill['length']:.2f} of the drift (best fit {skill['fitted']:.2f}, prediction error "
            f"{skill['error']:.2f})"
        )
        if lasting := persistence(skill):
            shown[f"persistence, {kind}"] = lasting
    if log.unread:
        shown["damage"] = f"lines of the log that cannot be read: {log.unread:,}"
    return shown


def events(log: RunLog) -> list[str]:
    """Return the events of a run, each with the full step where it first happened."""
    return [f"full step {event['step']:,}: {event['reason']}" for event in log.ledger.events]


def lines(log: RunLog, width: int, now: float) -> list[str]:
    """Return a run as lines of text at time ``now``, of at least 40 columns."""
    width = max(_NARROWEST, width)
    status = log.status
    if log.end is None and now - log.seen > _SILENT:
        status = f"nothing written for {duration(now - log.seen)}; it may have been killed"
    filled = round(width * min(1.0, log.ledger.steps / log.steps))
    table = [*facts(log).items(), *(("event", event) for event in events(log)[-5:])]
    column = max(len(name) for name, _ in table) + 2
    shown = [f"{log.name}: {status}", "", "█" * filled + "░" * (width - filled)]
    shown += [sparkline(_losses(log), width), ""]
    shown += [f"{name:{column}}{text}" for name, text in table]
    wrapped = [wrap(printable(x), width, subsequent_indent=" " * column) or [""] for x in shown]
    return [line for each in wrapped for line in each]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as at most ``width`` block characters; neighbours are averaged if need be."""
    count = min(width, len(values))
    if not count:
        return ""
    edges = [round(k * len(values) / count) for k in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low = min(means)
    scale = (len(_BLOCKS) - 1) / ((max(means) - low) or 1.0)
    return "".join(_BLOCKS[round((mean - low) * scale)] for mean in means)


def _losses(log: RunLog) -> list[float]:
    return [row.loss for row in log.rows if row.loss is not None]


def _saving(ledger: SavingsLedger) -> str:
    saved = percent(ledger.saved_steps_fraction)
    return f"{saved} fewer full steps; by estimate {ledger.host_time}"


def _time(log: RunLog) -> str:
    """Return the time since the run was started or resumed, and an estimate of the rest."""
    taken = max(0.0, log.seen - float(log.start["time"]))
    ledgers = [row.ledger for row in log.rows]
    before = [x.steps for x in ledgers if x.full_steps <= log.start["full_steps"]]
    done = log.ledger.steps - (before[-1] if before else 0)
    if log.end is not None or done <= 0:
        return duration(taken)
    left = taken * max(0, log.steps - log.ledger.steps) / done
    return f"{duration(taken)}, about {duration(left)} to come"
