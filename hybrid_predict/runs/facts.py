"""What a run has cost and saved, as text for pages and the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hybrid_predict.ledger import remarks
from hybrid_predict.runs.log import RunLog
from hybrid_predict.text import duration, percent, printable

ONE_RUN = (
    "One run cannot show whether the loss is as good as that of plain training: nothing here was "
    "trained without the plug-in. It shows what was spent."
)
"""Sentence on what a single run can show."""

PROOF = "hybrid-predict audit (of a Lightning model), or a few seeds with and without the callback"
"""What shows whether quality is kept."""


def finding(log: RunLog) -> str:
    """Return a short line on the full steps and host seconds of a run; its events say more.

    Only a run that has made all its steps has taken fewer full steps than planned: what plain
    training would have taken until it stops is not known.
    """
    ledger = log.ledger
    if not ledger.full_steps:
        return "nothing was trained yet"
    share = percent(ledger.saved_steps_fraction) if ledger.predicted_steps else "none"
    if ledger.steps < log.steps:
        how = "running," if log.end is None else f"{log.status.partition(':')[0]} after"
        text = f"{how} {ledger.steps:,} of {log.steps:,} steps, {share} of them predicted"
    elif ledger.predicted_steps:
        text = f"{share} fewer full steps; {ledger.host_time}"
    else:
        text = f"{ledger.full_steps:,} full steps, none predicted"
    briefly = [re.split(r": | \(", remark)[0] for remark in remarks(ledger)]
    return printable("; ".join([text, *briefly]))


def facts(log: RunLog) -> dict[str, str]:
    """Return what a run found, counted and measured, by name; what is unknown is left out."""
    ledger = log.ledger
    plan = log.start["plan"]
    planned = f"{'at most ' if plan['paced'] else ''}{plan['predicted']:,} planned"
    shown = {
        "finding": finding(log),
        "status": log.status,
        "written": datetime.fromtimestamp(log.seen).strftime("%Y-%m-%d %H:%M:%S"),
        "steps": f"{ledger.steps:,} of {log.steps:,}",
        "full steps": f"{ledger.full_steps:,}, {ledger.corrected_steps:,} corrected",
        "predicted": f"{ledger.predicted_steps:,} ({planned}), {ledger.undone_steps:,} undone",
    }
    if ledger.mean_length is not None:
        shown["mean length"] = f"{ledger.mean_length:.2f} of the drift"
    shown["seconds"] = (
        f"{duration(ledger.full_seconds)} in full steps, {duration(ledger.overhead_seconds)} in "
        "the plug-in, on the host"
    )
    if ledger.best is not None:
        shown["validation"] = ledger.best_validation
    if log.losses:
        shown["loss"] = log.losses
    for kind, skill in ledger.skills.items():
        bound = f"at least {skill['lower']:.2f}, " if skill["windows"] > 1 else ""
        shown[f"skill, {kind}"] = f"{skill['mean']:.2f} ({bound}{skill['windows']:g} windows)"
        shown[f"length, {kind}"] = f"{skill['length']:.2f} of the drift"
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
