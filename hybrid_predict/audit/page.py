"""The report of an audit, one HTML page, with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.audit.notes import COLUMNS, arm_rows, plain_finding
from hybrid_predict.runs.figures import SIZE, data_uri, new_figure, run_figure, scale, tidy
from hybrid_predict.runs.log import RunLog
from hybrid_predict.runs.page import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"short": "#8a8f98", "corrected": "#2a9d8f", "hybrid": "#d1495b", "full": "#264653"}
"""The arms from left to right, with their colours; controls follow."""

CONTROLS = ("#457b9d", "#e9a03b", "#7b6d8d", "#6a994e")
"""Colours of further arms, in turn."""


def audit_page(results: Mapping[str, Any], log: RunLog | None) -> str:
    """Return the report of an audit from ``results.json`` and the log of its first hybrid run."""
    figures = {}
    if results["runs"]:
        figures["Final metric by arm"] = data_uri(final_figure, results)
        for key, over in (
            ("metric_curve", "full steps"),
            ("curve", "full steps"),
            ("curve", "seconds"),
        ):
            if any(run[key] for run in results["runs"]):
                title = f"{_named(results, key)} over {over}"
                figures[title] = data_uri(curves_figure, results, key, over)
    rows = [
        [run[name] for name in ("arm", "seed", "full_steps", "predicted_steps")]
        + [f"{run['seconds']:.1f}", run["failure"] or f"{run['metric']:.6g}"]
        for run in results["runs"]
    ]
    # What finished runs depend on besides the configuration.
    trained = {
        name: values
        for name, values in results["depends_on"].items()
        if name not in results["config"] and isinstance(values, Mapping)
    }
    metric = results["config"]["metric"]
    return render(
        "audit/page.html.jinja",
        results=results,
        finding=plain_finding(results),
        figures=figures,
        columns=[title.format(metric=metric) for title in COLUMNS],
        arms=arm_rows(results),
        tests=_tests(results),
        gains=_gains(results),
        run_columns=["arm", "seed", "full steps", "predicted steps", "seconds", metric],
        runs=rows,
        trained=trained,
        first_run=None if log is None else data_uri(run_figure, log),
    )


def _bounds(found: Mapping[str, Any]) -> list[str]:
    """Return a mean with its bounds as cells of a table."""
    if found["lower"] is None:
        return ["none" if found["mean"] is None else f"{found['mean']:+.3g}", ""]
    return [
        f"{found['mean']:+.3g} ± {found['sd']:.2g}",
        f"{found['lower']:+.3g} to {found['upper']:+.3g}",
    ]


def _tests(results: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each of the verdict's means, if it has them."""
    verdict = results["verdict"]
    config = results["config"]
    formula = f"hybrid - {config['retain']:g} full - {1 - config['retain']:g} control"
    if config["margin"] is not None:
        formula = f"hybrid - full - {config['margin']:g}"
    names = {
        "contrast": f"{formula}: below 0 if quality is kept",
        "gain": "control - hybrid: above 0 if it is better",
        "worth": "control - full: what the saved steps are worth",
    }
    return [[text, *_bounds(verdict[key])] for key, text in names.items() if verdict[key]]


def _gains(results: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each mechanism, then one for each difference of arms."""
    rows = [
        [f"{name}: {gain['without']} → {gain['with']}", *_bounds(gain), gain["reading"]]
        for name, gain in results["earned"].items()
    ]
    for name, found in results["paired"].items():
        if found["n"]:
            rows.append([name, *_bounds({**found, "lower": None}), ""])
    return rows


def _shades(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the colour of every arm that has runs, in the order of the figures."""
    controls = results["config"]["controls"]
    further = {name: CONTROLS[k % len(CONTROLS)] for k, name in enumerate(controls)}
    return {k: v for k, v in {**COLORS, **further}.items() if k in results["summary"]}


def final_figure(results: Mapping[str, Any]) -> Figure:
    """Draw the final metric of ``results.json``, one line per seed through the arms."""
    runs = results["runs"]
    shades = _shades(results)
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    arms = list(shades)
    for seed in results["seeds"]:
        known = {run["arm"]: run["metric"] for run in runs if run["seed"] == seed}
        points = [(k, known[arm]) for k, arm in enumerate(arms) if known.get(arm) is not None]
        places = [k for k, _ in points]
        values = [value for _, value in points]
        axes.plot(places, values, color="#b8bcc4", linewidth=1, zorder=1)
        axes.scatter(places, values, color=[shades[arms[k]] for k in places], s=42, zorder=2)
    axes.set(ylabel=f"final {results['config']['metric']}", xlim=(-0.4, len(arms) - 0.4))
    axes.set_xticks(range(len(arms)), [arm.replace(", ", ",\n") for arm in arms])
    tidy(axes, "Final values, one line per seed")
    return figure


def _named(results: Mapping[str, Any], key: str) -> str:
    """Return what a curve of the entries shows."""
    return "training loss" if key == "curve" else str(results["config"]["metric"])


def curves_figure(results: Mapping[str, Any], key: str, over: str) -> Figure:
    """Draw ``curve`` or ``metric_curve`` of the entries, one line per arm and seed.

    ``over`` is ``full steps`` or ``seconds``, without those of validation.
    """
    loss = key == "curve"
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    for arm, color in _shades(results).items():
        label: str | None = arm
        for run in results["runs"]:
            if run["arm"] == arm and run[key]:
                full_steps, seconds, values = zip(*run[key], strict=True)
                axes.plot(
                    seconds if over == "seconds" else full_steps,
                    np.array(values, dtype=float),
                    color=color,
                    linewidth=1.2,
                    label=label,
                    alpha=0.7,
                    marker="" if loss else "o",
                    markersize=3,
                )
                label = None  # one in the legend
    label = _named(results, key)
    axes.set(xlabel=over, ylabel=label, xlim=(0, None))
    scale(axes)
    tidy(axes, f"{label} over {over}")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure
