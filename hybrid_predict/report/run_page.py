"""The report of single runs from their event logs: their cost, not a comparison of losses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from hybrid_predict.ledger import duration, percent, why_unpredicted
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_figures import loss_figure, skill_figure, spent_figure
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.shared import data_uri, render

ONE_RUN = (
    "One run cannot show whether the loss is as good as that of plain training: nothing here was "
    "trained without the plug-in. It shows what was spent."
)
"""Sentence on what a single run can show."""

NEXT = "hybrid-predict audit config.yaml --plan"
"""Command that estimates the time of an audit."""


def write_run_page(logs: Sequence[RunLog], path: Path) -> Path:
    """Write a page about one run, or about several side by side.

    Args:
        logs: Logs of at least one run.
        path: File to write.

    Returns:
        The path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    runs = [
        {
            "log": log,
            "finding": finding(log),
            "figures": [
                ("Training loss and predicted steps of this run", data_uri(loss_figure(log))),
                ("Skill of the forecasts over full steps", data_uri(skill_figure(log))),
                ("Where steps and seconds of this run went", data_uri(spent_figure(log))),
            ],
            "skills": skill_rows(log),
            "config": log.start["config"],
            "environment": log.start["environment"],
        }
        for log in logs
    ]
    table = [facts(log) for log in logs]
    rows = [(name, [each[name] for each in table]) for name in table[0]]
    names = _short_names(logs)
    return render(
        "run.html.jinja", path, runs=runs, rows=rows, names=names, one_run=ONE_RUN, next=NEXT
    )


def finding(log: RunLog) -> str:
    """Return a line on the full steps and the host seconds that a run saved."""
    ledger, plan = log.ledger, log.start["plan"]
    so_far = "so far " if log.end is None else ""
    if not ledger.full_steps:
        return "nothing was trained yet"
    if not plan["predicted"]:
        return f"{so_far}{ledger.full_steps:,} full steps; no predicted steps were planned"
    if not ledger.predicted_steps:
        if ledger.steps < plan["warmup"]:
            return f"{so_far}no predicted steps: the warm-up is not over, so nothing was saved"
        why = why_unpredicted(log.events) or "no predicted steps where they were planned"
        return f"{so_far}{printable(why)}; nothing was saved"
    saved = ledger.estimated_seconds_saved
    return f"{so_far}{percent(ledger.saved_steps_fraction)} fewer full steps; by estimate " + (
        f"{duration(saved)} saved of {duration(ledger.plain_seconds)} on the host"
        if saved > 0
        else f"{duration(-saved)} longer on the host than {duration(ledger.plain_seconds)} of full "
        "steps alone"
    )


def facts(log: RunLog) -> dict[str, str]:
    """Return the counts and measurements of a run as text by name."""
    ledger, plan = log.ledger, log.start["plan"]
    losses = [row["loss"] for row in log.rows if row["loss"] is not None]
    planned = f"{plan['predicted']:,} planned"
    return {
        "status": log.status,
        "last written": datetime.fromtimestamp(log.seen).strftime("%Y-%m-%d %H:%M:%S"),
        "steps": f"{ledger.steps:,} of {log.steps:,}",
        "full steps": f"{ledger.full_steps:,}",
        "of them corrected": f"{ledger.corrected_steps:,}",
        "predicted steps": f"{ledger.predicted_steps:,} ({planned})",
        "undone": f"{ledger.undone_steps:,}",
        "mean length of predicted steps": _in_drifts(ledger.mean_length),
        "fewer full steps": percent(ledger.saved_steps_fraction),
        "host seconds in full steps": duration(ledger.full_seconds),
        "host seconds in the plug-in": duration(ledger.overhead_seconds),
        "overhead, measured": ledger.overhead,
        "overhead of correcting, counted": _counted(log),
        "skill": "not known" if ledger.skill is None else f"{ledger.skill:.2f}",
        "last training loss": f"{losses[-1]:.4g}" if losses else "not known",
        "lines of the event log that cannot be read": f"{log.unread:,}",
    }


def skill_rows(log: RunLog) -> list[dict[str, str]]:
    """Return the skill of the forecasts by kind, as text."""
    return [
        {
            "kind": kind,
            "mean": f"{skill['mean']:.2f}",
            "lower": f"{skill['lower']:.2f}" if skill["windows"] > 1 else "not known",
            **{name: f"{skill[name]:.2f}" for name in ("length", "fitted", "error")},
            "windows": f"{skill['windows']:,.0f}",
        }
        for kind, skill in log.ledger.skills.items()
    ]


def _in_drifts(length: float | None) -> str:
    return "none was made" if length is None else f"{length:.2f} of the drift"


def _counted(log: RunLog) -> str:
    share = log.ledger.correction_share
    return "not counted" if share is None else f"{percent(share)} of a full step's operations"


def _short_names(logs: Sequence[RunLog]) -> list[str]:
    """Return the names of the runs without the folders that all of them share."""
    parts = [log.path.resolve().parent.parts for log in logs]
    if len(parts) == 1:
        return [logs[0].name]
    shared = 0
    while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    return ["/".join(p[shared:]) for p in parts]
