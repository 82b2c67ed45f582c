"""What a run has cost and saved, as text for pages and the terminal."""

from __future__ import annotations

from datetime import datetime

from hybrid_predict.ledger import duration, percent, remarks
from hybrid_predict.runs.files import printable
from hybrid_predict.runs.log import RunLog

ONE_RUN = (
    "One run cannot show whether the loss is as good as that of plain training: nothing here was "
    "trained without the plug-in. It shows what was spent."
)
"""Sentence on what a single run can show."""

PROOF = "hybrid-predict audit (of a Lightning model), or a few seeds with and without the callback"
"""What shows whether quality is kept."""


def finding(log: RunLog) -> str:
    """Return a line on the full steps and the host seconds that a run saved, or why it did not."""
    ledger = log.ledger
    if not ledger.full_steps:
        return "nothing was trained yet"
    so_far = "so far " if log.end is None else ""
    remarked = remarks(ledger)
    reason = f"; {printable(remarked)}" if remarked else ""
    saved = f"{ledger.full_steps:,} full steps, no predicted steps"
    if ledger.predicted_steps:
        share = percent(ledger.saved_steps_fraction)
        saved = f"{share} fewer full steps; by estimate {ledger.host_time}"
    return f"{so_far}{saved}{reason}"


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
    """Return the events of a run, each with the full step where it first happened."""
    return [f"full step {event['step']:,}: {event['reason']}" for event in log.ledger.events]
