"""The page about single runs, and what the page of an audit shares with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.facts import NEXT, ONE_RUN, events, facts, finding, proof
from hybrid_predict.runs.figures import (
    LASTING,
    MEASURED,
    data_uri,
    kinds_figure,
    loss_figure,
    seconds_figure,
)
from hybrid_predict.runs.log import RunLog

PARTS = {
    "full steps, corrected": "#2a9d8f",
    "full steps, plain": "#264653",
    "predicted steps": "#e9a03b",
    "correcting": "#d1495b",
    "predicting, verifying": "#7b6d8d",
}
"""What steps and seconds are spent on, and the colour of each."""


def render(template: str, **context: Any) -> str:
    """Return a page from one of the package's templates, as one file without links to others."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**context, parts=PARTS)


def run_page(logs: Sequence[RunLog]) -> str:
    """Return a page about one run, or about several side by side: their cost, not their quality."""
    table = [{"finding": finding(log), "status": log.status, **facts(log)} for log in logs]
    names = dict.fromkeys(name for each in table for name in each if name != "saving")
    return render(
        "runs/run.html.jinja",
        runs=[{"log": log, "events": events(log), **inside(log)} for log in logs],
        rows=[[name, *(each.get(name, "unknown") for each in table)] for name in names],
        names=_short_names(logs),
        one_run=ONE_RUN,
        proof=proof(logs),
        is_command=proof(logs) == NEXT,
    )


def inside(log: RunLog) -> dict[str, Any]:
    """Return the figures about a run, as addresses that hold the data, and its shares by part."""
    lasting = any("advance" in skill for skill in log.ledger.skills.values())
    shown = [*MEASURED, *(LASTING if lasting else ())]
    figures = {
        "Training loss and predicted steps over full steps": data_uri(loss_figure, log),
        "Training loss over seconds": data_uri(seconds_figure, log),
        **{each.title: data_uri(kinds_figure, log, each) for each in shown},
    }
    return {"figures": figures, "spent": _spent(log.ledger)}


def _spent(ledger: SavingsLedger) -> dict[str, dict[str, float]]:
    """Return the percentages of the steps and of the host seconds that each part took."""
    corrected = ledger.full_seconds * ledger.corrected_steps / max(1, ledger.full_steps)
    plain = ledger.full_seconds - corrected
    spent: dict[str, list[float]] = {
        "steps": [ledger.corrected_steps, ledger.plain_steps, ledger.predicted_steps, 0.0, 0.0],
        "seconds": [corrected, plain, 0.0, ledger.correct_seconds, ledger.predict_seconds],
    }
    return {
        name: {part: 100 * x / (sum(amounts) or 1) for part, x in zip(PARTS, amounts, strict=True)}
        for name, amounts in spent.items()
    }


def _short_names(logs: Sequence[RunLog]) -> list[str]:
    """Return the names of the runs without the folders that all of them share."""
    if len(logs) == 1:
        return [logs[0].name]
    folders = [log.path.resolve().parent for log in logs]
    shared = os.path.commonpath(folders)
    return [os.path.relpath(folder, shared) for folder in folders]
