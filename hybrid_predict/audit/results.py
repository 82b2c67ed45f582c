"""Contents of the results file of an audit: a view of its finished runs, in numbers and words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.store import SCHEMA, FinishedRun
from hybrid_predict.audit.verdict import AuditVerdict, PairedSeed, judge_audit
from hybrid_predict.runs.evidence import (
    ARMS,
    CORRECTED,
    FEW_SEEDS,
    FULL,
    HYBRID,
    SHORT,
    bounds,
    mean_and_sd,
    spread,
)
from hybrid_predict.runs.runtime import environment, finite

Pairs = Sequence[tuple[FinishedRun, FinishedRun]]
"""Runs of two arms, by seed."""

_MEANS = ("full_steps", "predicted_steps", "undone_steps", "steps", "seconds")
"""Numbers of a run whose means over the seeds are in the summary."""

_MECHANISMS = {
    "corrected updates": (SHORT, CORRECTED, "corrected_steps"),
    "predicted steps": (CORRECTED, HYBRID, "predicted_steps"),
}
"""The arms without and with each mechanism, and what counts its steps."""

COLUMNS = (
    "arm", "full\nsteps", "predicted\nsteps", "undone", "seconds", "{metric}\n(mean ± sd)",
    "best, after\nfull steps",
)  # fmt: skip
"""Titles of the table of arms."""


def make_results(
    config: AuditConfig, depends_on: Mapping[str, Any], runs: Sequence[FinishedRun]
) -> tuple[dict[str, Any], AuditVerdict]:
    """Return the content of the results file as plain data, and the verdict."""
    runs = [as_compared(run, config) for run in runs]
    by_seed: dict[int, dict[str, FinishedRun]] = {}
    for run in runs:
        by_seed.setdefault(run["seed"], {})[run["arm"]] = run
    # Seeds that have all arms, controls apart.
    seeds = [arms for _, arms in sorted(by_seed.items()) if arms.keys() >= set(ARMS)]
    verdict = judge_audit([paired(arms[FULL], arms[SHORT], arms[HYBRID]) for arms in seeds], config)

    def pairs(left: str, right: str) -> Pairs:
        both = [(arms[left], arms[right]) for arms in seeds if {left, right} <= arms.keys()]
        return [(a, b) for a, b in both if not (a["failure"] or b["failure"])]

    compared = [(HYBRID, name) for name in config.arms if name != HYBRID]
    compared += [(name, FULL) for name in config.arms if name not in (HYBRID, FULL)]
    planned = len(config.arms) * config.seeds
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "partial": len(runs) < planned,
        "planned_runs": planned,
        "seeds": list(range(config.seeds)),
        "environment": environment(),
        "config": config.to_dict(),
        "hybrid_config": config.hybrid_config().to_dict(),
        "depends_on": dict(depends_on),
        "runs": list(runs),
        "summary": _summary(runs, config),
        "paired": {
            f"{left} - {right}": spread([a["metric"] - b["metric"] for a, b in pairs(left, right)])
            for left, right in compared
        },
        "earned": {
            name: {"without": without, "with": arm, **_earned(pairs(without, arm), config, made)}
            for name, (without, arm, made) in _MECHANISMS.items()
        },
        "verdict": asdict(verdict),
    }
    results["notes"] = _notes(results, config)
    return finite(results), verdict


def best_point(run: FinishedRun, config: AuditConfig) -> tuple[int, float] | None:
    """Return the full steps before a run's best validation, and its value; None without one."""
    points = [(steps, value) for steps, value in run["curve"] if value is not None]
    return min(points, key=lambda point: config.sign * point[1], default=None)


def as_compared(run: FinishedRun, config: AuditConfig) -> FinishedRun:
    """Return a run whose metric is the one that the audit compares."""
    best = best_point(run, config)
    if config.compare == "last" or run["failure"] or best is None:
        return run
    return {**run, "metric": best[1]}


def paired(full: FinishedRun, short: FinishedRun, hybrid: FinishedRun) -> PairedSeed:
    """Return what a verdict compares of one seed; a search may give another arm as ``hybrid``."""
    named = {FULL: full, SHORT: short, HYBRID: hybrid}
    return PairedSeed(
        **{n: math.nan if run["failure"] else float(run["metric"]) for n, run in named.items()},
        full_steps=full["full_steps"],
        short_steps=short["full_steps"],
        hybrid_steps=hybrid["full_steps"],
    )


def _summary(runs: Sequence[FinishedRun], config: AuditConfig) -> dict[str, Any]:
    summary = {}
    for name in config.arms:
        if arm := [run for run in runs if run["arm"] == name]:
            summary[name] = {
                "metric": spread([run["metric"] for run in arm if not run["failure"]]),
                "best": _best(arm, config),
                **{key: fmean(run[key] for run in arm) for key in _MEANS},
                "failures": Counter(run["failure"] for run in arm if run["failure"]),
            }
    return summary


def _best(runs: Sequence[FinishedRun], config: AuditConfig) -> dict[str, float] | None:
    """Return the means of the runs' best validations and of the full steps before them."""
    points = [best_point(run, config) for run in runs]
    known = [point for point in points if point is not None]
    if not known:
        return None
    return {"full_steps": fmean(p[0] for p in known), "metric": fmean(p[1] for p in known)}


def _earned(pairs: Pairs, config: AuditConfig, made: str) -> dict[str, Any]:
    """Return what a mechanism has earned, at about as many full steps.

    Gains are positive if the metric became better. Seeds without a step of the mechanism that
    stands are ``idle`` and left out: without predicted steps, the hybrid arm is the corrected
    arm with more full steps. Bounds are None below two seeds.
    """
    used = [(one, other) for one, other in pairs if other[made]]
    values = [config.sign * (one["metric"] - other["metric"]) for one, other in used]
    limits = bounds(values, config.alpha) if len(values) > 1 else None
    reading = "no difference that these seeds can show"
    if pairs and not used:
        reading = "none was made, so there is no gain from them"
    elif limits is None or len(values) < FEW_SEEDS:
        reading = "too few seeds to tell"
    elif limits.lower > 0 or limits.upper < 0:
        reading = "better" if limits.lower > 0 else "worse"
    return {
        **spread(values),
        "lower": limits and limits.lower,
        "upper": limits and limits.upper,
        "more_full_steps": spread([b["full_steps"] - a["full_steps"] for a, b in used])["mean"],
        "idle": len(pairs) - len(used),
        "reading": reading,
    }


def arm_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of arms as text, one row per arm."""
    rows = []
    for name, summary in results["summary"].items():
        counts = [f"{summary[f'{key}_steps']:,.0f}" for key in ("full", "predicted", "undone")]
        metrics = [mean_and_sd(summary["metric"])]
        metrics += [f"{count} {failure}" for failure, count in summary["failures"].items()]
        best = summary["best"]
        shown = f"{best['metric']:.5g}, {best['full_steps']:,.0f}" if best else "none"
        rows.append([name, *counts, f"{summary['seconds']:,.1f}", ", ".join(metrics), shown])
    return rows


def _notes(results: Mapping[str, Any], config: AuditConfig) -> list[str]:
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
            f"{name.capitalize()} gained {gain['mean']:+.3g}{sd} ({gain['with']} against "
            f"{gain['without']}{after}): {gain['reading']}.{idle}"
        )


def _arms(results: Mapping[str, Any], config: AuditConfig) -> Iterator[str]:
    summary = results["summary"]
    times = {name: arm["seconds"] / summary[FULL]["seconds"] for name, arm in summary.items()}
    yield (
        f"In seconds, without validation, the hybrid arm took {times[HYBRID]:.2f} times as long as "
        f"the full arm, the corrected arm {times[CORRECTED]:.2f} times."
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
            f"Correction alone {how}: train with HybridPredict(speedup=1) for "
            f"{summary[CORRECTED]['full_steps']:,.0f} full steps, with a schedule of that length."
        )


def _events(runs: list[Mapping[str, Any]]) -> Iterator[str]:
    ledgers = [run["ledger"] or {} for run in runs if run["arm"] == HYBRID]
    reasons = Counter(event["reason"] for each in ledgers for event in each.get("events", []))
    for reason, count in reasons.items():
        yield f"Event in {count} of {len(ledgers)} hybrid runs: {reason}."
