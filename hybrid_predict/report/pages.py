"""The pages: the report of an audit, and that of single runs from their logs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.report.audit_figures import (
    colors,
    curves_figure,
    difference_figure,
    paired_figure,
)
from hybrid_predict.report.run_facts import ONE_RUN, events, facts, finding
from hybrid_predict.report.run_figures import (
    length_figure,
    loss_figure,
    pace_figure,
    persistence_figure,
    seconds_figure,
    skill_figure,
)
from hybrid_predict.report.run_log import RunLog, read_log
from hybrid_predict.report.shared import data_uri, mean_and_sd, render
from hybrid_predict.runs.evidence import FEW_SEEDS, FULL, HYBRID, LEAST_SAVING

PARTS = {
    "full steps, corrected": "#2a9d8f",
    "full steps, plain": "#264653",
    "predicted steps": "#e9a03b",
    "correcting": "#d1495b",
    "predicting, verifying": "#7b6d8d",
}
"""What steps and seconds are spent on, and the colour of each."""

COLUMNS = ("arm", "full\nsteps", "predicted\nsteps", "undone", "seconds", "{metric}\n(mean ± sd)")
"""Titles of the table, for the terminal."""

NEXT = "hybrid-predict audit config.yaml --plan"
"""Command that estimates the time of an audit."""

NO_AUDIT = "training from a few seeds, with and without the callback (audits need Lightning)"
"""What to do where no audit takes the Trainer."""


def proof(logs: Sequence[RunLog]) -> str:
    """Return what shows whether quality is kept: a command, unless no run could be audited."""
    return NEXT if any(log.start["audited"] for log in logs) else NO_AUDIT


def run_page(logs: Sequence[RunLog]) -> str:
    """Return a page about one run, or about several side by side: their cost, not their quality."""
    runs = [{"log": log, "finding": finding(log), "events": events(log, told=log.ledger.fell_back),
             **_inside(log)} for log in logs]  # fmt: skip
    table = [{"status": log.status, **facts(log)} for log in logs]
    names = dict.fromkeys(name for each in table for name in each if name != "saving")
    rows = [(name, [each.get(name, "unknown") for each in table]) for name in names]
    return render(
        "run.html.jinja", runs=runs, rows=rows, names=_short_names(logs), one_run=ONE_RUN,
        proof=proof(logs), next=NEXT, parts=PARTS,
    )  # fmt: skip


def _inside(log: RunLog) -> dict[str, Any]:
    """Return the figures about a run, as addresses that hold the data, and its shares by part."""
    drawn = {
        "Training loss and predicted steps over full steps": loss_figure,
        "Training loss over seconds": seconds_figure,
        "Skill of the forecasts over full steps": skill_figure,
        "Length of forecasts over full steps": length_figure,
    }
    if adaptive := any("advance" in skill for skill in log.ledger.skills.values()):
        drawn["Predicted steps per full step, and advance"] = pace_figure
        drawn["Persistence of the forecasts over full steps"] = persistence_figure
    figures = {title: data_uri(draw, log) for title, draw in drawn.items()}
    return {"figures": figures, "spent": _spent(log.ledger), "adaptive": adaptive}


def _spent(ledger: SavingsLedger) -> dict[str, dict[str, float]]:
    """Return the percentages of the steps and of the host seconds that each part took."""
    corrected = ledger.corrected_steps / max(1, ledger.full_steps)
    full, steps = ledger.full_seconds, [ledger.corrected_steps, ledger.plain_steps]
    own = [ledger.correct_seconds, ledger.predict_seconds]
    spent: dict[str, list[float]] = {
        "steps": [*steps, ledger.predicted_steps, 0.0, 0.0],
        "seconds": [full * corrected, full * (1.0 - corrected), 0.0, *own],
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


def audit_page(results: Mapping[str, Any], log: Path | None) -> str:
    """Return the report of an audit from ``results.json`` and the log of its first hybrid run.

    None, or a missing file, omits the figures of that run.
    """
    figures, runs = {}, results["runs"]
    if runs:
        figures["paired"] = data_uri(paired_figure, results)
    if any(run.get("metric_curve") for run in runs):
        figures["validation"] = data_uri(curves_figure, results, "metric_curve", "full steps")
    if any(run.get("curve") for run in runs):
        figures["loss"] = data_uri(curves_figure, results, "curve", "full steps")
        figures["seconds"] = data_uri(curves_figure, results, "curve", "seconds")
    if results["verdict"]["contrast"] is not None:
        figures["difference"] = data_uri(difference_figure, results)
    inside = _inside(read_log(log)) if log is not None and log.exists() else None
    # What finished runs depend on besides the configuration.
    trained = {
        name: values
        for name, values in results["depends_on"].items()
        if name not in results["config"] and isinstance(values, Mapping)
    }
    return render(
        "audit.html.jinja", results=results, finding=plain_finding(results), figures=figures,
        rows=audit_rows(results), colors=colors(results), trained=trained, inside=inside,
        parts=PARTS,
    )  # fmt: skip


def plain_finding(results: Mapping[str, Any]) -> str:
    """Compare quality and full steps of the hybrid and the full arm in one line."""
    verdict = results["verdict"]
    values = {(r["arm"], r["seed"]): r["metric"] for r in results["runs"] if not r["failure"]}
    seeds = [seed for arm, seed in values if arm == FULL and (HYBRID, seed) in values]
    if verdict["saving"] is None or len(seeds) < verdict["seeds"]:
        return str(verdict["headline"])
    full, hybrid = (fmean(values[arm, seed] for seed in seeds) for arm in (FULL, HYBRID))
    if not full:
        return str(verdict["headline"])
    change = 100 * (hybrid - full) / abs(full)
    metric, saved = results["config"]["metric"], f"{100 * verdict['saving']:.0f} % fewer full steps"
    size = float(f"{abs(change):.2g}")  # 280, not 2.8e+02
    what = f"{size:g} % {'lower' if change < 0 else 'higher'} {metric} with {saved}"
    if unsaved(results):
        nothing = "no full steps were saved, so there is no saving to prove"
        return f"{nothing}: {what}" if change else nothing
    if verdict["seeds"] < FEW_SEEDS:
        return f"hint: {what}"
    kind = {"verified": "verified saving", "undecided": "not decided"}
    return f"{kind.get(verdict['outcome'], 'no saving')}: {what}"


def unsaved(results: Mapping[str, Any]) -> bool:
    """Return whether the hybrid arm saved no full steps, so that there is nothing to prove."""
    saving = results["verdict"]["saving"]
    return saving is not None and saving < LEAST_SAVING


def audit_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return one row of text per arm, for the page and the terminal."""
    rows = []
    for name, summary in results["summary"].items():
        metrics = [mean_and_sd(summary["metric"])]
        metrics += [f"{count} {failure}" for failure, count in summary["failures"].items()]
        counts = ("full_steps", "predicted_steps", "undone_steps")
        steps = {key: f"{summary[key]:,.0f}" for key in counts}
        seconds = f"{summary['seconds']:,.1f}"
        rows.append({"arm": name, **steps, "seconds": seconds, "metric": ", ".join(metrics)})
    return rows
