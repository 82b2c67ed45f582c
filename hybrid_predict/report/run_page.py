"""The report of single runs from their logs: their cost, not a comparison of losses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hybrid_predict.report.run_facts import ONE_RUN, events, facts, finding
from hybrid_predict.report.run_figures import loss_figure, skill_figure, spent_figure
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.shared import data_uri, render

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
        OSError: If the file cannot be written.
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
            "events": events(log),
        }
        for log in logs
    ]
    table = [{"status": log.status, **facts(log)} for log in logs]
    names = dict.fromkeys(name for each in table for name in each)
    rows = [(name, [each.get(name, "unknown") for each in table]) for name in names]
    return render(
        "run.html.jinja", path, runs=runs, rows=rows, names=_short_names(logs), one_run=ONE_RUN,
        next=NEXT,
    )  # fmt: skip


def _short_names(logs: Sequence[RunLog]) -> list[str]:
    """Return the names of the runs without the folders that all of them share."""
    if len(logs) == 1:
        return [logs[0].name]
    folders = [log.path.resolve().parent for log in logs]
    shared = os.path.commonpath(folders)
    return [os.path.relpath(folder, shared) for folder in folders]
