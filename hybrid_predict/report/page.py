"""The demo's report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hybrid_predict.report.figure import new_figure
from hybrid_predict.report.run_figures import loss_figure, skill_figure, spent_figure
from hybrid_predict.report.run_log import NAME, read_log
from hybrid_predict.report.shared import (
    COLORS,
    SIZE,
    data_uri,
    mean_and_sd,
    number,
    paired_figure,
    render,
    tidy,
)
from hybrid_predict.runs.evidence import CONTROL, CORRECTED, FEW_SEEDS, FULL, HYBRID, SHORT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MECHANISMS = {
    "corrected updates": f"{CORRECTED} - {SHORT}",
    "predicted steps": f"{HYBRID} - {CORRECTED}",
}
"""The paired differences that show what each mechanism does."""

BEYOND_FULL, BELOW_SHORT = "beyond full", "below short"
"""What stands for a number of plain steps where the two plain arms do not bracket the loss."""


def run_folder(folder: Path, arm: str, seed: int) -> Path:
    """Where the event log of one run of a demo is."""
    return folder / "runs" / f"{arm}-seed{seed}"


def write_page(results: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.html``.

    Args:
        results: What ``results.json`` holds.
        folder: Where to write, and where the event log of the first hybrid run is found.

    Returns:
        The page's path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    figures = {}
    if results["runs"]:
        figures["curves"] = data_uri(curves_figure(results))
        order = (SHORT, CORRECTED, HYBRID, FULL, CONTROL)
        label = "final validation loss\n(nats per byte)"
        figures["paired"] = data_uri(paired_figure(results["runs"], order, "val_loss", label))
    path = run_folder(folder, HYBRID, 0) / NAME
    if path.exists() and any(run["arm"] == HYBRID for run in results["runs"]):
        log = read_log(path)
        for name, draw in (("loss", loss_figure), ("skill", skill_figure), ("spent", spent_figure)):
            figures[name] = data_uri(draw(log))
    return render(
        "demo.html.jinja",
        folder / "report.html",
        results=results,
        figures=figures,
        rows=table_rows(results),
        colors=COLORS,
        mechanisms=MECHANISMS,
        few_seeds=FEW_SEEDS,
        skills=skill_rows(results),
    )


def table_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per arm, as text: for the page and the terminal."""
    rows = []
    for name, summary in results["summary"].items():
        plain = results["plain_steps_to_reach"].get(name)
        rows.append(
            {
                "arm": name,
                "full_steps": f"{summary['full_steps']:,.0f}",
                "predicted_steps": f"{summary['predicted_steps']:,.0f}",
                "seconds": f"{summary['seconds']:,.1f}",
                "val_loss": mean_and_sd(summary["val_loss"], places=4),
                "plain_steps": f"{plain:,.0f}" if isinstance(plain, float) else plain or "",
            }
        )
    return rows


def skill_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """What was known of the forecasts' skill at the end of each hybrid run, as text."""
    return [
        {
            "seed": str(run["seed"]),
            "kind": kind,
            "mean": f"{skill['mean']:.2f}",
            "lower": f"{skill['lower']:.2f}",
            "windows": f"{skill['windows']:,.0f}",
            "predicted": f"{run['predicted_steps']:,} ({run['undone_steps']:,} undone)",
        }
        for run in results["runs"]
        if run["arm"] == HYBRID
        for kind, skill in run["ledger"]["skills"].items()
    ]


def curves_figure(results: Mapping[str, Any]) -> Figure:
    """Validation loss against full steps: thin lines per seed, a thick one for their mean."""
    figure = new_figure(figsize=SIZE)
    axes = figure.subplots()
    for arm in results["summary"]:
        curves = [run["curve"] for run in results["runs"] if run["arm"] == arm]
        color = COLORS.get(arm, "black")
        for curve in curves if len(curves) > 1 else []:
            axes.plot(*zip(*curve, strict=True), color=color, linewidth=0.8, alpha=0.4)
        points = list(zip(*curves, strict=False))
        steps = [fmean(step for step, _ in point) for point in points]
        losses = [fmean(number(loss) for _, loss in point) for point in points]
        axes.plot(steps, losses, color=color, linewidth=2.2, marker="o", markersize=4, label=arm)
    axes.set(xlabel="full steps", ylabel="validation loss (nats per byte)", xlim=(0, None))
    axes.set_title("Validation loss of the arms", fontsize="medium", loc="left")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def conclusion(results: Mapping[str, Any]) -> dict[str, str]:
    """What the results say in plain words: a headline and a paragraph."""
    n = results["paired"][f"{HYBRID} - {FULL}"]["n"]
    done = f"{len(results['runs'])} of {results['planned_runs']} runs are done."
    if not n:
        return {"headline": "Nothing to compare yet", "text": f"Stopped early: {done}"}
    if not all(math.isfinite(number(run["val_loss"])) for run in results["runs"]):
        text = "At least one run ended with a loss that is no finite number; lower --learning-rate."
        return {"headline": "No comparison: a run diverged", "text": text}
    if n < FEW_SEEDS:
        source = f"A hint from {n} paired seed{'s' if n > 1 else ''}"
    else:
        source = f"Over {n} paired seeds"
    results = {**results, "summary": _over_complete_seeds(results["runs"])}
    finding, sentences = _finding(results)
    sentences += _details(results, n)
    if results["partial"]:
        sentences.append(f"The demo was stopped early: {done}")
    return {"headline": f"{source}: {finding}", "text": " ".join(sentences)}


def _over_complete_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means per arm over the seeds that have all arms of the comparison."""
    compared = (FULL, SHORT, CORRECTED, HYBRID)
    seeds = [{run["seed"] for run in runs if run["arm"] == arm} for arm in compared]
    complete = set.intersection(*seeds)
    keys = ("full_steps", "predicted_steps", "seconds")
    means: dict[str, Any] = {}
    for arm in dict.fromkeys(run["arm"] for run in runs):
        chosen = [run for run in runs if run["arm"] == arm and run["seed"] in complete]
        if chosen:
            means[arm] = {k: fmean(run[k] for run in chosen) for k in keys}
            means[arm]["val_loss"] = {"mean": fmean(run["val_loss"] for run in chosen)}
    return means


def _finding(results: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The main result in one phrase, and the sentences that explain it."""
    full, short, corrected, hybrid = (
        results["summary"][name] for name in (FULL, SHORT, CORRECTED, HYBRID)
    )
    loss = {k: v["val_loss"]["mean"] for k, v in results["summary"].items()}
    taken, plain = hybrid["full_steps"], results["plain_steps_to_reach"][HYBRID]
    explained = [
        f"After {taken:,.0f} full and {hybrid['predicted_steps']:,.0f} predicted steps the hybrid "
        f"arm's mean validation loss is {loss[HYBRID]:.4f} nats per byte. Plain training is at "
        f"{loss[SHORT]:.4f} after {short['full_steps']:,.0f} full steps, with its schedule "
        f"shortened to them, and at {loss[FULL]:.4f} after {full['full_steps']:,.0f}.",
        f"Corrected updates alone are at {loss[CORRECTED]:.4f} after "
        f"{corrected['full_steps']:,.0f} full steps.",
    ]
    if plain == BELOW_SHORT or (plain != BEYOND_FULL and plain <= taken):
        return "no gain over plain training with as many full steps", explained
    credit = _credit(loss)
    if plain == BEYOND_FULL:
        saved = 1 - taken / full["full_steps"]
        explained.append(
            "The hybrid arm ends below the full arm, so plain training would have needed more full "
            "steps than were tried."
        )
        return (
            f"lower loss than the full run, with {saved:.0%} fewer full steps; {credit}",
            explained,
        )
    explained.append(
        f"By interpolation between the plain arms, plain training would have needed about "
        f"{plain:,.0f} full steps to end where the hybrid arm does."
    )
    return (
        f"{taken:,.0f} hybrid full steps do the work of {plain:,.0f} plain ones; {credit}",
        explained,
    )


def _credit(loss: Mapping[str, float]) -> str:
    """Which mechanism the hybrid arm's gain over the short arm comes from, in one phrase.

    Args:
        loss: Mean final losses by arm; the hybrid arm's is below the short arm's.
    """
    share = (loss[SHORT] - loss[CORRECTED]) / (loss[SHORT] - loss[HYBRID])
    if share > 1:
        return "predicted steps lost a part of what corrected updates gained"
    if share < 0:
        return "predicted steps gained it, and corrected updates lost a part"
    return f"{share:.0%} of the gain by corrected updates, {1 - share:.0%} by predicted steps"


def _details(results: Mapping[str, Any], n: int) -> list[str]:
    """Sentences on seeds, seconds, the control and the strength of the evidence."""
    summary = results["summary"]
    by_arm = {name: {r["seed"]: r for r in results["runs"] if r["arm"] == name} for name in summary}
    hybrid = by_arm[HYBRID]

    def wins(name: str) -> str:
        common = hybrid.keys() & by_arm[name].keys()
        better = sum(hybrid[k]["val_loss"] < by_arm[name][k]["val_loss"] for k in common)
        return f"{better} of {len(common)}"

    sentences = []
    if n > 1:
        sentences.append(
            f"The hybrid arm's loss is lower than the short arm's on {wins(SHORT)} seeds, than the "
            f"corrected arm's on {wins(CORRECTED)}, and than the full arm's on {wins(FULL)}."
        )
    sentences.append(
        f"A hybrid full step took {results['overhead_ratio']:.2f} times as long as a plain one; in "
        f"all, the hybrid arm trained for {summary[HYBRID]['seconds']:,.0f} seconds, the full arm "
        f"for {summary[FULL]['seconds']:,.0f}."
    )
    if CONTROL in summary:
        sentences.append(
            "Plain training with the learning rate of the hidden matrices doubled is at "
            f"{summary[CONTROL]['val_loss']['mean']:.4f} after "
            f"{summary[CONTROL]['full_steps']:,.0f} full steps."
        )
    if n < FEW_SEEDS:
        sentences.append(
            f"So few seeds are no more than a hint; --seeds {FEW_SEEDS} would say more."
        )
    else:
        difference = results["paired"][f"{HYBRID} - {FULL}"]
        error = difference["sd"] / math.sqrt(n)
        sentences.append(
            f"The paired difference hybrid - full is {difference['mean']:+.4f} with a standard "
            f"error of {error:.4f}."
        )
    return sentences
