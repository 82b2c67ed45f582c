"""What the results of an audit say, in sentences for the page, the terminal and MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.store import FinishedRun
from hybrid_predict.audit.verdict import signed
from hybrid_predict.runs.evidence import (
    AT_LEAST,
    CORRECTED,
    EXACT,
    FEW_SEEDS,
    FULL,
    HYBRID,
    LEAST_SAVING,
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


def unsaved(results: Mapping[str, Any]) -> bool:
    """Return whether the hybrid arm saved no full steps, so that there is nothing to prove."""
    saving = results["verdict"]["saving"]
    return saving is not None and saving < LEAST_SAVING


def plain_finding(results: Mapping[str, Any]) -> str:
    """Compare quality and full steps of the hybrid and the full arm in one line."""
    verdict = results["verdict"]
    values = {(r["arm"], r["seed"]): r["metric"] for r in results["runs"] if not r["failure"]}
    seeds = [seed for arm, seed in values if arm == FULL and (HYBRID, seed) in values]
    full, hybrid = (fmean([values[arm, seed] for seed in seeds] or [0]) for arm in (FULL, HYBRID))
    if verdict["saving"] is None or len(seeds) < verdict["seeds"] or not full:
        return str(verdict["headline"])
    change = 100 * (hybrid - full) / abs(full)
    size = float(f"{abs(change):.2g}")  # 280, not 2.8e+02
    what = (
        f"{size:g} % {'lower' if change < 0 else 'higher'} {results['config']['metric']} with "
        f"{100 * verdict['saving']:.0f} % fewer full steps"
    )
    if unsaved(results):
        return f"no full steps were saved, so there is no saving to prove: {what}"
    if verdict["seeds"] < FEW_SEEDS:
        return f"hint: {what}"
    kind = {"verified": "verified saving", "undecided": "not decided"}
    return f"{kind.get(verdict['outcome'], 'no saving')}: {what}"


def gains(earned: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each mechanism, from ``earned`` of the results."""
    told = []
    for name, gain in earned.items():
        title = name.capitalize()
        if gain["n"]:
            more = round(gain["more_full_steps"] or 0)
            after = f", after {more:+,} full step{'s' * (abs(more) != 1)}" * bool(more)
            idle = f" Seeds without any are left out: {gain['idle']}." * bool(gain["idle"])
            sd = "" if gain["sd"] is None else f" ± {gain['sd']:.2g}"
            told.append(
                f"{title} gained {signed(gain['mean'])}{sd} ({gain['with']} against "
                f"{gain['without']}{after}): {gain['reading']}.{idle}"
            )
        elif gain["idle"]:
            told.append(f"{title}: {gain['reading']}.")
    return told


def make_notes(
    results: Mapping[str, Any], config: AuditConfig, seeds: Sequence[Mapping[str, FinishedRun]]
) -> list[str]:
    """Return what a reader of the results should know besides the verdict."""
    left_out = (text for run in results["runs"] for text in run["left_out"])
    return [
        *dict.fromkeys(left_out),
        *(_lengths(config, seeds) if seeds else ()),
        *_comparisons(results, config),
        *_events(results["runs"]),
    ]


def _lengths(config: AuditConfig, seeds: Sequence[Mapping[str, FinishedRun]]) -> Iterator[str]:
    """Tell seconds and full steps of the arms, where they are not as planned."""
    times = {}
    steps = {}
    for name in (SHORT, CORRECTED, HYBRID):
        times[name] = median(arms[name]["seconds"] / arms[FULL]["seconds"] for arms in seeds)
        steps[name] = fmean(arms[name]["full_steps"] for arms in seeds)
    total = seeds[0][FULL]["total_steps"]
    due = steps[HYBRID] if isinstance(config.speedup, str) else total / config.speedup
    yield (
        f"In seconds, without validation, the hybrid arm took {times[HYBRID]:.2f} times as long as "
        f"the full arm, the corrected arm {times[CORRECTED]:.2f} times (medians over seeds)."
    )
    if steps[SHORT] > due + 1:
        yield (
            f"The short and the corrected arm take {steps[SHORT]:,.0f} full steps instead of "
            f"{due:,.0f}, because epochs are rounded up."
        )
    if isinstance(config.speedup, str):
        yield f'With "auto" the hybrid arm took {steps[HYBRID]:,.0f} of {total:,} full steps.'
    if steps[HYBRID] > 1.01 * due:
        made = any(arms[HYBRID]["predicted_steps"] for arms in seeds)
        some = "some predicted steps were not made, or were undone"
        yield (
            f"The hybrid arm took {steps[HYBRID]:,.0f} full steps instead of {due:,.0f}: "
            f"{some if made else 'no predicted step was made, or stands'}."
        )


def _comparisons(results: Mapping[str, Any], config: AuditConfig) -> Iterator[str]:
    """Compare arms with plain training of other lengths, and controls with the full arm."""
    for arm, plain in results["plain_steps_to_reach"].items():
        steps = f"{plain['steps']:,.0f} full steps"
        if plain["bound"] == EXACT:
            yield f"Plain training would need about {steps} to end where the {arm} arm does."
        else:
            how = "better" if plain["bound"] == AT_LEAST else "worse"
            yield f"The {arm} arm ends {how} than plain training of {steps}."
    for name in config.controls:
        gap = results["paired"][f"{name} - {FULL}"]["mean"]
        if gap is not None and config.sign * gap < 0:
            yield f"The control {name} ends better than the full arm: tune plain training first."
    corrected, predicted = results["earned"].values()
    few = min(predicted["n"], corrected["n"]) < FEW_SEEDS
    if not few and predicted["lower"] <= 0 < corrected["lower"]:
        how = "is better" if predicted["upper"] < 0 else "may do as well"
        steps = f"{results['summary'][CORRECTED]['full_steps']:,.0f} full steps"
        yield (
            f"Correction alone {how}: train with HybridPredict(speedup=1) for {steps}, with a "
            "schedule of that length."
        )


def _events(runs: Sequence[FinishedRun]) -> Iterator[str]:
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
