"""The report of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hybrid_predict.report.figure import new_figure, run_figure, smoothed
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.shared import (
    COLORS,
    SIZE,
    data_uri,
    mean_and_sd,
    paired_figure,
    render,
    tidy,
)
from hybrid_predict.runs.evidence import FEW_SEEDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = ("short", "corrected", "hybrid", "full")

COLUMNS = ("arm", "full\nsteps", "predicted\nsteps", "undone", "seconds", "{metric}\n(mean ± sd)")
"""Titles of the table, for the terminal."""


def write_audit_page(results: Mapping[str, Any], history: RunHistory | None, path: Path) -> Path:
    """Write the report.

    Args:
        results: What ``results.json`` holds.
        history: The first hybrid run's history; None leaves its figure out.
        path: Where to write.

    Returns:
        The path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figures = {}
    if results["runs"]:
        label = f"final {results['config']['metric']}"
        figures["paired"] = data_uri(paired_figure(results["runs"], ORDER, "metric", label))
    if any(run.get("curve") for run in results["runs"]):
        figures["curves"] = data_uri(loss_curves(results["runs"]))
    if results["verdict"]["contrast"] is not None:
        figures["difference"] = data_uri(difference_figure(results))
    if history is not None:
        figures["history"] = data_uri(run_figure(history))
    return render(
        "audit.html.jinja",
        path,
        results=results,
        finding=plain_finding(results),
        figures=figures,
        rows=audit_rows(results),
        colors=COLORS,
    )


def plain_finding(results: Mapping[str, Any]) -> str:
    """What was found, in plain words: quality and full steps of the hybrid and the full arm."""
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
    if verdict["seeds"] < FEW_SEEDS:
        return f"hint: {what}; for proof: --seeds {FEW_SEEDS}"
    kind = {"verified": "verified saving", "undecided": "not decided"}
    return f"{kind.get(verdict['outcome'], 'no saving')}: {what}"


def loss_curves(runs: Sequence[Mapping[str, Any]]) -> Figure:
    """Training loss against full steps, one line per arm and seed."""
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    for arm in ORDER:
        curves = [run["curve"] for run in runs if run["arm"] == arm and run.get("curve")]
        for k, curve in enumerate(curves):
            steps, losses = zip(*curve, strict=True)
            label = arm if k == 0 else None
            axes.plot(
                steps, smoothed(list(losses), 3), color=COLORS[arm], linewidth=1.2, label=label,
                alpha=0.9 if len(curves) == 1 else 0.6,
            )  # fmt: skip
    axes.set(xlabel="full steps", ylabel="training loss", xlim=(0, None))
    axes.set_title("Training loss of the arms", fontsize="medium", loc="left")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure


def audit_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per arm, as text: for the page and the terminal."""
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


def difference_figure(results: Mapping[str, Any]) -> Figure:
    """Differences from the full arm by seed, and where the hybrid arm's mean may lie.

    The bar spans the two one-sided confidence bounds of the contrast that is tested, moved by the
    line that it is tested against: the test is met where the bar ends on the near side of the line.

    Args:
        results: What ``results.json`` holds.

    Returns:
        A matplotlib figure.
    """
    verdict, config = results["verdict"], results["config"]
    sign = 1.0 if config["mode"] == "min" else -1.0
    line = sign * verdict["line"]
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    values = {(r["arm"], r["seed"]): r["metric"] for r in results["runs"] if not r["failure"]}
    for height, arm in enumerate(ORDER[:-1]):
        differences = [
            value - values["full", seed]
            for (name, seed), value in values.items()
            if name == arm and ("full", seed) in values
        ]
        heights = [height] * len(differences)
        axes.scatter(differences, heights, color=COLORS[arm], s=42, alpha=0.55, zorder=3)
    ends = [line + sign * verdict["contrast"][name] for name in ("lower", "upper")]
    axes.plot(ends, [2.28, 2.28], color=COLORS["hybrid"], linewidth=4, solid_capstyle="butt")
    middle = line + sign * verdict["contrast"]["mean"]
    axes.plot([middle], [2.28], marker="|", markersize=13, markeredgewidth=3, color="#1d2129")
    axes.axvline(0, color=COLORS["full"], linewidth=1.2, label="full")
    kept = f"keeps {config['retain']:.0%} of what the saved steps are worth"
    label = kept if config["margin"] is None else f"margin {config['margin']:g}"
    axes.axvline(line, color="#e9a03b", linestyle="--", linewidth=1.6, label=label)
    better = "less" if sign > 0 else "more"
    axes.set(xlabel=f"{config['metric']} - full arm's ({better} is better)", ylim=(-0.5, 2.9))
    axes.set_yticks(range(3), ORDER[:-1])
    tidy(axes)
    axes.set_title("Differences from the full arm", fontsize="medium", loc="left")
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return figure
