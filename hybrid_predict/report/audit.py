"""The report of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from hybrid_predict.report.audit_figures import (
    colors,
    curves_figure,
    difference_figure,
    paired_figure,
)
from hybrid_predict.report.run_figures import loss_figure, skill_figure, spent_figure
from hybrid_predict.report.run_log import read_log
from hybrid_predict.report.shared import data_uri, mean_and_sd, render
from hybrid_predict.runs.evidence import FEW_SEEDS, LEAST_SAVING

COLUMNS = ("arm", "full\nsteps", "predicted\nsteps", "undone", "seconds", "{metric}\n(mean ± sd)")
"""Titles of the table, for the terminal."""


def write_audit_page(results: Mapping[str, Any], log: Path | None, path: Path) -> Path:
    """Write the report.

    Args:
        results: Content of ``results.json``.
        log: Event log of the first hybrid run; None, or a missing file, omits its figures.
        path: File to write.

    Returns:
        The path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figures, runs, metric = {}, results["runs"], results["config"]["metric"]
    shades = colors(results)
    if runs:
        figures["paired"] = data_uri(paired_figure(runs, shades, "metric", f"final {metric}"))
    if any(run.get("curve") for run in runs):
        figures["curves"] = data_uri(curves_figure(runs, shades, "curve", "training loss"))
    if any(len(run.get("metric_curve", ())) > 1 for run in runs):
        figures["validation"] = data_uri(curves_figure(runs, shades, "metric_curve", metric))
    if results["verdict"]["contrast"] is not None:
        figures["difference"] = data_uri(difference_figure(results))
    if log is not None and log.exists():
        events = read_log(log)
        for name, draw in (("loss", loss_figure), ("skill", skill_figure), ("spent", spent_figure)):
            figures[name] = data_uri(draw(events))
    return render(
        "audit.html.jinja",
        path,
        results=results,
        finding=plain_finding(results),
        figures=figures,
        rows=audit_rows(results),
        colors=shades,
        trained=_trained(results),
    )


def _trained(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what finished runs depend on besides the configuration, by name."""
    return {
        name: values
        for name, values in results["depends_on"].items()
        if name not in results["config"] and isinstance(values, Mapping)
    }


def plain_finding(results: Mapping[str, Any]) -> str:
    """Compare quality and full steps of the hybrid and the full arm in one line."""
    verdict = results["verdict"]
    values = {(r["arm"], r["seed"]): r for r in results["runs"] if not r["failure"]}
    seeds = [seed for arm, seed in values if arm == "full" and ("hybrid", seed) in values]
    if verdict["saving"] is None or len(seeds) < verdict["seeds"]:
        return str(verdict["headline"])
    full, hybrid = (
        fmean(values[arm, seed]["metric"] for seed in seeds) for arm in ("full", "hybrid")
    )
    if not full:
        return str(verdict["headline"])
    change = 100 * (hybrid - full) / abs(full)
    metric, saved = results["config"]["metric"], f"{100 * verdict['saving']:.0f} % fewer full steps"
    what = f"{abs(change):.2g} % {'lower' if change < 0 else 'higher'} {metric} with {saved}"
    if verdict["saving"] < LEAST_SAVING:
        return f"no full steps were saved, so there is no saving to prove: {what}"
    if verdict["seeds"] < FEW_SEEDS:
        return f"hint: {what}; for proof: --seeds {FEW_SEEDS}"
    kind = {"verified": "verified saving", "undecided": "not decided"}
    return f"{kind.get(verdict['outcome'], 'no saving')}: {what}"


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
