"""What the results of an audit say besides the verdict, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.verdict import signed
from hybrid_predict.runs.evidence import (
    CORRECTED,
    FEW_SEEDS,
    FULL,
    HYBRID,
    SHORT,
    mean_and_sd,
)

COLUMNS = ("arm", "full\nsteps", "predicted\nsteps", "undone", "seconds", "{metric}\n(mean ± sd)")
"""Titles of the table of arms."""


def arm_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of arms as text, one row per arm."""
    rows = []
    for name, summary in results["summary"].items():
        counts = [f"{summary[f'{key}_steps']:,.0f}" for key in ("full", "predicted", "undone")]
        metrics = [mean_and_sd(summary["metric"])]
        metrics += [f"{count} {failure}" for failure, count in summary["failures"].items()]
        rows.append([name, *counts, f"{summary['seconds']:,.1f}", ", ".join(metrics)])
    return rows


def make_notes(results: Mapping[str, Any], config: AuditConfig) -> list[str]:
    """Return what a reader of the results should know besides the verdict, in sentences."""
    if not results["verdict"]["seeds"]:
        return []
    return [*_gains(results["earned"]), *_arms(results, config), *_events(results["runs"])]


def _gains(earned: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, gain in earned.items():
        if not gain["n"]:
            yield f"{name.capitalize()}: {gain['reading']}."
            continue
        sd = "" if gain["sd"] is None else f" ± {gain['sd']:.2g}"
        more = round(gain["more_full_steps"])
        after = f", after {more:+,} full steps" * bool(more)
        idle = f" Seeds without any are left out: {gain['idle']}." * bool(gain["idle"])
        yield (
            f"{name.capitalize()} gained {signed(gain['mean'])}{sd} ({gain['with']} against "
            f"{gain['without']}{after}): {gain['reading']}.{idle}"
        )


def _arms(results: Mapping[str, Any], config: AuditConfig) -> Iterator[str]:
    summary = results["summary"]
    steps = {name: f"{arm['full_steps']:,.0f} full steps" for name, arm in summary.items()}
    times = {name: arm["seconds"] / summary[FULL]["seconds"] for name, arm in summary.items()}
    yield (
        f"In seconds, without validation, the hybrid arm took {times[HYBRID]:.2f} times as long as "
        f"the full arm, the corrected arm {times[CORRECTED]:.2f} times."
    )
    if summary[HYBRID]["full_steps"] > 1.01 * summary[SHORT]["full_steps"]:
        yield (
            f"The hybrid arm took {steps[HYBRID]}, the short arm {steps[SHORT]}: predicted steps "
            "were not made, or were undone."
        )
    for name in config.controls:
        gap = results["paired"][f"{name} - {FULL}"]["mean"]
        if gap is not None and config.sign * gap < 0:
            yield f"The control {name} ends better than the full arm: tune plain training first."
    corrected, predicted = results["earned"].values()
    few = min(predicted["n"], corrected["n"]) < FEW_SEEDS
    if not few and predicted["lower"] <= 0 < corrected["lower"]:
        how = "is better" if predicted["upper"] < 0 else "may do as well"
        yield (
            f"Correction alone {how}: train with HybridPredict(speedup=1) for {steps[CORRECTED]}, "
            "with a schedule of that length."
        )


def _events(runs: list[Mapping[str, Any]]) -> Iterator[str]:
    """Tell each event of the hybrid arm once, with the seeds that had it, and since when."""
    places: dict[str, list[str]] = {}
    for run in runs:
        for event in (run["ledger"] or {}).get("events", []) if run["arm"] == HYBRID else ():
            reason = event["reason"]
            at_times = run["predicted_steps"] and reason.startswith("no predicted steps while")
            text = f"at times {reason}" if at_times else reason
            where = f"full step {event['step']:,} of seed {run['seed']}"
            places.setdefault(text, []).append(where)
    for text, each in places.items():
        yield f"Hybrid arm: {text} (first at {', '.join(each)})."
