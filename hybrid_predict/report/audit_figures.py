"""The figures of an audit's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_predict.report.shared import SIZE, new_figure, scale, smoothed, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = ("short", "corrected", "hybrid", "full")
"""The arms from left to right; controls follow."""

COLORS = {"full": "#264653", "short": "#8a8f98", "corrected": "#2a9d8f", "hybrid": "#d1495b"}
CONTROLS = ("#457b9d", "#e9a03b", "#7b6d8d", "#6a994e")
"""Colours of further arms, in turn."""


def colors(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the colour of every arm, in the order of the figures."""
    controls = results["config"]["controls"]
    further = {name: CONTROLS[k % len(CONTROLS)] for k, name in enumerate(controls)}
    return {**{arm: COLORS[arm] for arm in ORDER}, **further}


def paired_figure(results: Mapping[str, Any]) -> Figure:
    """Draw the final metric of ``results.json``, one line per seed through the arms."""
    runs = results["runs"]
    shades = colors(results)
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    arms = [name for name in shades if any(run["arm"] == name for run in runs)]
    for seed in sorted({run["seed"] for run in runs}):
        by_arm = {run["arm"]: run["metric"] for run in runs if run["seed"] == seed}
        shown = [k for k, arm in enumerate(arms) if arm in by_arm]
        values = np.array([by_arm[arms[k]] for k in shown], dtype=float)
        axes.plot(shown, values, color="#b8bcc4", linewidth=1, zorder=1)
        axes.scatter(shown, values, color=[shades[arms[k]] for k in shown], s=42, zorder=2)
    axes.set(ylabel=f"final {results['config']['metric']}", xlim=(-0.4, len(arms) - 0.4))
    axes.set_xticks(range(len(arms)), [arm.replace(", ", ",\n") for arm in arms])
    axes.set_title("Final values, one line per seed", fontsize="medium", loc="left")
    tidy(axes)
    return figure


def curves_figure(results: Mapping[str, Any], key: str, over: str) -> Figure:
    """Draw ``curve`` or ``metric_curve`` of the entries, one line per arm and seed.

    ``over`` is ``full steps`` or ``seconds``, without those of validation.
    """
    loss = key == "curve"
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    for arm, color in colors(results).items():
        curves = [run[key] for run in results["runs"] if run["arm"] == arm and run.get(key)]
        for k, curve in enumerate(curves):
            full_steps, seconds, values = zip(*curve, strict=True)
            axes.plot(
                seconds if over == "seconds" else full_steps,
                smoothed(list(values), 3 if loss else 1),
                color=color,
                linewidth=1.2,
                label=arm if k == 0 else None,
                alpha=0.9 if len(curves) == 1 else 0.6,
                marker="" if loss else "o",
                markersize=3,
            )
    label = "training loss" if loss else results["config"]["metric"]
    axes.set(xlabel=over, ylabel=label, xlim=(0, None))
    title = "Training loss" if loss else label
    axes.set_title(f"{title} over {over}", fontsize="medium", loc="left")
    scale(axes)
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure


def difference_figure(results: Mapping[str, Any]) -> Figure:
    """Draw differences from the full arm by seed, and the bounds of the hybrid arm's mean.

    The bar spans the one-sided confidence bounds of the contrast that is tested, moved by the line
    that it is tested against.
    """
    verdict = results["verdict"]
    config = results["config"]
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
    better = "lower" if sign > 0 else "higher"
    axes.set(
        xlabel=f"{config['metric']} minus that of full\n({better} is better)", ylim=(-0.5, 2.9)
    )
    axes.set_yticks(range(3), ORDER[:-1])
    axes.locator_params(axis="x", nbins=5)
    tidy(axes)
    axes.set_title("Differences from the full arm", fontsize="medium", loc="left")
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return figure
