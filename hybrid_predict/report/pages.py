"""The pages: the report of an audit, and that of single runs from their logs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hybrid_predict.report.audit_figures import (
    colors,
    curves_figure,
    difference_figure,
    paired_figure,
)
from hybrid_predict.report.run_facts import ONE_RUN, events, facts, finding
from hybrid_predict.report.run_figures import loss_figure, pace_figure, skill_figure, spent_figure
from hybrid_predict.report.run_log import RunLog, read_log
from hybrid_predict.report.shared import data_uri, mean_and_sd, render
from hybrid_predict.runs.evidence import FEW_SEEDS, FULL, HYBRID, LEAST_SAVING

COLUMNS = ("arm", "full\nsteps", "predicted\nsteps", "undone", "seconds", "{metric}\n(mean ± sd)")
"""Titles of the table, for the terminal."""

NEXT = "hybrid-predict audit config.yaml --plan"
"""Command that estimates the time of an audit."""


def run_page(logs: Sequence[RunLog]) -> str:
    """Return a page about one run, or about several side by side: their cost, not their quality."""
    runs = [
        {"log": log, "finding": finding(log), "figures": _figures(log), "events": events(log)}
        for log in logs
    ]
    table = [{"status": log.status, **facts(log)} for log in logs]
    names = dict.fromkeys(name for each in table for name in each)
    rows = [(name, [each.get(name, "unknown") for each in table]) for name in names]
    return render(
        "run.html.jinja", runs=runs, rows=rows, names=_short_names(logs), one_run=ONE_RUN, next=NEXT
    )


def _figures(log: RunLog) -> list[tuple[str, str]]:
    """Return the figures about a run with their titles, as addresses that hold the data."""
    drawn = [
        ("Training loss and predicted steps of this run", loss_figure),
        ("Skill of the forecasts over full steps", skill_figure),
        ("Where steps and seconds of this run went", spent_figure),
    ]
    if log.start["plan"].get("paced"):  # a number needs no persistence
        drawn.insert(2, ("Predicted steps per full step, and persistence", pace_figure))
    return [(title, data_uri(draw(log))) for title, draw in drawn]


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
        figures["paired"] = data_uri(paired_figure(results))
    if any(run.get("curve") for run in runs):
        figures["curves"] = data_uri(curves_figure(results, "curve"))
    if any(len(run.get("metric_curve", ())) > 1 for run in runs):
        figures["validation"] = data_uri(curves_figure(results, "metric_curve"))
    if results["verdict"]["contrast"] is not None:
        figures["difference"] = data_uri(difference_figure(results))
    if log is not None and log.exists():
        events = read_log(log)
        for name, draw in (("loss", loss_figure), ("skill", skill_figure), ("spent", spent_figure)):
            figures[name] = data_uri(draw(events))
    # What finished runs depend on besides the configuration.
    trained = {
        name: values
        for name, values in results["depends_on"].items()
        if name not in results["config"] and isinstance(values, Mapping)
    }
    return render(
        "audit.html.jinja", results=results, finding=plain_finding(results), figures=figures,
        rows=audit_rows(results), colors=colors(results), trained=trained,
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
        rows.append(
            {
                "arm": name,
                "full_steps": f"{summary['full_steps']:,.0f}",
                "predicted_steps": f"{summary['predicted_steps']:,.0f}",
                "undone_steps": f"{summary['undone_steps']:,.0f}",
                "seconds": f"{summary['seconds']:,.1f}",
                "metric": ", ".join(metrics),
            }
        )
    return rows
