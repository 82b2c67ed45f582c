"""The report of an audit, one HTML page, with its figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.audit.results import arm_rows
from hybrid_predict.runs.evidence import mean_and_sd
from hybrid_predict.runs.page import SIZE, data_uri, new_figure, render, scale, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


UNITS = ("full steps", "seconds")
"""What the metric is drawn over."""


def audit_page(results: Mapping[str, Any]) -> str:
    """Return the report of an audit from ``results.json``."""
    metric = results["config"]["metric"]
    figures = {}
    if any(value is not None for run in results["runs"] for _, value in run["curve"]):
        for unit in UNITS:
            figures[f"{metric} over {unit}"] = data_uri(curves_figure(results, unit))
    arms = arm_rows(results)
    return render(
        "audit/page.html.jinja",
        results=results,
        figures=figures,
        columns=list(arms[0]) if arms else [],
        arms=[list(row.values()) for row in arms],
        tests=_tests(results),
        differences=[
            [name, mean_and_sd(found)] for name, found in results["paired"].items() if found["n"]
        ],
    )


def _tests(results: Mapping[str, Any]) -> list[list[str]]:
    config = results["config"]
    formula = f"hybrid - {config['retain']:g} full - {1 - config['retain']:g} control"
    if config["margin"] is not None:
        formula = f"hybrid - full - {config['margin']:g}"
    texts = {
        "contrast": f"{formula}: below 0 if quality is kept",
        "gain": "control - hybrid: above 0 if it is better",
        "worth": "control - full: what the saved steps are worth",
    }
    rows = []
    for key, text in texts.items():
        if found := results["verdict"][key]:
            limits = f"{found['lower']:+.3g} to {found['upper']:+.3g}"
            rows.append([text, mean_and_sd(found), limits])
    return rows


def curves_figure(results: Mapping[str, Any], unit: str) -> Figure:
    """Draw the metric in training over one of the units, one line per arm and seed.

    The full steps of a run are drawn as equally long, so only its last second was measured.
    """
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    shades = {arm: f"C{place}" for place, arm in enumerate(results["summary"])}
    metric = results["config"]["metric"]
    for run in results["runs"]:
        if run["curve"]:
            full_steps, values = zip(*run["curve"], strict=True)
            each = 1.0 if unit == UNITS[0] else run["seconds"] / max(1, run["full_steps"])
            style: Any = {"color": shades[run["arm"]], "linewidth": 1.2, "alpha": 0.7}
            style |= {"marker": "o", "markevery": [-1], "markersize": 4}
            # A label that begins with an underscore is not in the legend.
            label = run["arm"] if run["seed"] == 0 else f"_{run['arm']}"
            places = each * np.array(full_steps)
            axes.plot(places, np.array(values, dtype=float), label=label, **style)
    axes.set(xlabel=unit, ylabel=metric, xlim=(0, None))
    scale(axes)
    tidy(axes, f"{metric} over {unit}")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure
