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
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import RunLog

ONE_RUN = (
    "One run cannot show whether the loss is as good as that of plain training: nothing here was "
    "trained without the plug-in. It shows what was spent."
)
"""Sentence on what a single run can show."""

SILENT = 60.0
"""Seconds without a line after which a run may have been killed."""

BLOCKS = "▁▂▃▄▅▆▇█"

NARROWEST = 40
"""Fewest columns that a run is drawn with."""


def finding(log: RunLog) -> str:
    """Return a line on the full steps and the host seconds that a run saved."""
    ledger, plan = log.ledger, log.start["plan"]
    so_far = "so far " if log.end is None else ""
    if not ledger.full_steps:
        return "nothing was trained yet"
    if fell_back := ledger.fell_back:
        since = next(text for text in events(log) if text.endswith(fell_back))
        return f"{so_far}{ledger.full_steps:,} full steps; {printable(since)}"
    if not plan["predicted"]:
        return f"{so_far}{ledger.full_steps:,} full steps; no predicted steps were planned"
    if ledger.predicted_steps:
        return f"{so_far}{_saving(ledger)}"
    if ledger.steps < plan["warmup"]:
        return f"{so_far}no predicted steps: the warm-up is not over, so nothing was saved"
    silent = NOT_LASTING if plan.get("paced") else "no predicted steps were made"
    why = why_unpredicted(ledger.events) or silent
    return f"{so_far}{printable(why)}; nothing was saved"


def facts(log: RunLog) -> dict[str, str]:
    """Return the counts and measurements of a run as text by name; what is unknown is left out."""
    ledger = log.ledger
    length, share, losses = ledger.mean_length, ledger.correction_share, known_losses(log)
    shown = {
        "written": datetime.fromtimestamp(log.seen).strftime("%Y-%m-%d %H:%M:%S"),
        "steps": f"{ledger.steps:,} of {log.steps:,}",
        "full steps": f"{ledger.full_steps:,}, {ledger.corrected_steps:,} corrected",
        "predicted": f"{ledger.predicted_steps:,} ({_planned(log)}), "
        f"{ledger.undone_steps:,} undone",
        "per full step": f"{ledger.predicted_per_full_step:.2f} predicted steps"
        if ledger.predicted_steps
        else "",
        "mean length": "" if length is None else f"{length:.2f} of the drift",
        "saving": _saving(ledger) if ledger.predicted_steps else "",
        "wall time": _time(log),
        "seconds": f"{duration(ledger.full_seconds)} in full steps, "
        f"{duration(ledger.overhead_seconds)} in the plug-in, on the host",
        "overhead": ledger.overhead,
        "correcting": f"{percent(share)} of a full step's operations"
        if share is not None and ledger.corrected_steps
        else "",
        "loss": f"{losses[0]:.4g} to {losses[-1]:.4g}" if losses else "",
    }
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
        what = "1 line" if log.unread == 1 else f"{log.unread:,} lines"
        shown["damage"] = f"{what} of the log cannot be read"
    return {name: text for name, text in shown.items() if text}


def events(log: RunLog, told: str = "") -> list[str]:
    """Return the events of a run but for one, each with the full step where it first happened."""
    kept = [event for event in log.ledger.events if event["reason"] != told]
    return [f"full step {event['step']:,}: {event['reason']}" for event in kept]


def known_losses(log: RunLog) -> list[float]:
    """Return the training losses of the rows that have one."""
    return [row.loss for row in log.rows if row.loss is not None]


def status(log: RunLog, now: float) -> str:
    """Return the status of a run, which may have been killed if it is silent at time ``now``."""
    silent = now - log.seen
    if log.end is None and silent > SILENT:
        return f"nothing written for {duration(silent)}; it may have been killed"
    return log.status


def lines(log: RunLog, width: int, now: float) -> list[str]:
    """Return a run as lines of text at time ``now``, of at least :data:`NARROWEST` columns."""
    width = max(NARROWEST, width)
    filled = round(width * min(1.0, log.ledger.steps / log.steps))
    table = list(facts(log).items()) + [("event", event) for event in events(log)[-5:]]
    column = max(len(name) for name, _ in table) + 2
    shown = [f"{log.name}: {status(log, now)}", "", "█" * filled + "░" * (width - filled)]
    shown += [sparkline(known_losses(log), width), ""]
    shown += [f"{name:{column}}{text}" for name, text in table]
    wrapped = [wrap(printable(x), width, subsequent_indent=" " * column) or [""] for x in shown]
    return [line for each in wrapped for line in each]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as at most ``width`` block characters; neighbours are averaged if need be."""
    count = min(width, len(values))
    if not count:
        return ""
    edges = [round(k * len(values) / count) for k in range(count + 1)]
    parts = [values[a:b] for a, b in pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def _planned(log: RunLog) -> str:
    """Return the number of planned predicted steps, which is a bound if the run decides itself."""
    plan = log.start["plan"]
    number = f"{plan['predicted']:,}"
    return f"at most {number}" if plan.get("paced") else f"{number} planned"


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
