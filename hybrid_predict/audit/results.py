"""Contents of the results file of an audit: a view of its finished runs, in numbers and words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.store import SCHEMA, FinishedRun
from hybrid_predict.audit.verdict import AuditVerdict, judge_audit, signed
from hybrid_predict.policy.policy import UNPREDICTED
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
from hybrid_predict.runs.log import when
from hybrid_predict.runs.runtime import environment, finite

_MEANS = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps", "steps", "seconds")
"""Numbers of a run whose means over the seeds are in the summary."""

_MECHANISMS = {
    "corrected updates": (CORRECTED, SHORT, "corrected_steps"),
    "predicted steps": (HYBRID, CORRECTED, "predicted_steps"),
}
"""The arms with and without each mechanism, and what counts its steps."""

_ALIKE = "no difference that these seeds can show"


def make_results(
    config: AuditConfig, depends_on: Mapping[str, Any], runs: Sequence[FinishedRun]
) -> tuple[dict[str, Any], AuditVerdict]:
    """Return the content of the results file as plain data, and the verdict."""
    runs = [as_compared(run, config) for run in runs]
    by_seed = [{r["arm"]: r for r in runs if r["seed"] == k} for k in range(config.seeds)]
    # Seeds that have all arms, controls apart.
    seeds = [arms for arms in by_seed if arms.keys() >= set(ARMS)]
    judged = [[arms[FULL], arms[SHORT], arms[HYBRID]] for arms in seeds]
    summary = _summary(runs, config)
    times = _times(summary, runs) if seeds else {}
    verdict = judge_audit(judged, config, time=times.get(HYBRID))
    compared = [(arm, without) for arm, without, _ in _MECHANISMS.values()]
    compared += [(HYBRID, name) for name in config.arms if name not in (HYBRID, CORRECTED)]
    compared += [(name, FULL) for name in config.arms if name not in (HYBRID, FULL)]
    planned = len(config.arms) * config.seeds
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "partial": len(runs) < planned,
        "planned_runs": planned,
        "environment": environment(),
        "config": config.to_dict(),
        "hybrid_config": config.hybrid_config().to_dict(),
        "depends_on": dict(depends_on),
        "runs": list(runs),
        "summary": summary,
        "paired": {
            f"{left} - {right}": _difference(seeds, left, right, config.alpha)
            for left, right in compared
        },
        "verdict": asdict(verdict),
    }
    results["notes"] = list(_notes(results, config, times)) if seeds else []
    return finite(results), verdict


def as_compared(run: FinishedRun, config: AuditConfig) -> FinishedRun:
    """Return a run whose metric is the one that the audit compares.

    ``best`` in it are the full steps before its best validation, and the value; None without one.
    """
    points = [(steps, value) for steps, value in run["curve"] if value is not None]
    best = min(points, key=lambda point: config.sign * point[1], default=None)
    chosen = config.compare == "best" and best is not None and not run["failure"]
    return {**run, "best": best, "metric": best[1] if chosen and best else run["metric"]}


def _summary(runs: Sequence[FinishedRun], config: AuditConfig) -> dict[str, Any]:
    summary = {}
    for name in config.arms:
        if arm := [run for run in runs if run["arm"] == name]:
            best = [run["best"] for run in arm if run["best"] is not None]
            steps, value = map(fmean, zip(*best, strict=True)) if best else (None, None)
            summary[name] = {
                "metric": spread([run["metric"] for run in arm if not run["failure"]]),
                "best": {"full_steps": steps, "metric": value} if best else None,
                **{key: fmean(run[key] for run in arm) for key in _MEANS},
                "failures": Counter(run["failure"] for run in arm if run["failure"]),
            }
    return summary


def _difference(
    seeds: Sequence[Mapping[str, FinishedRun]], left: str, right: str, alpha: float
) -> dict[str, Any]:
    """Return the paired difference of two arms, with bounds from two seeds on."""
    both = [(arms[left], arms[right]) for arms in seeds if {left, right} <= arms.keys()]
    values = [a["metric"] - b["metric"] for a, b in both if not (a["failure"] or b["failure"])]
    if len(values) > 1:
        return asdict(bounds(values, alpha))
    return {**spread(values), "lower": None, "upper": None}


def arm_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the table of arms as text by title, one row per arm."""
    rows = []
    for name, summary in results["summary"].items():
        metrics = [mean_and_sd(summary["metric"])]
        metrics += [f"{count} {failure}" for failure, count in summary["failures"].items()]
        best = summary["best"]
        row = {
            "arm": name,
            "full\nsteps": f"{summary['full_steps']:,.0f}",
            "predicted\nsteps": f"{summary['predicted_steps']:,.0f}",
            "undone": f"{summary['undone_steps']:,.0f}",
            "seconds": f"{summary['seconds']:,.1f}",
            f"{results['config']['metric']}\n(mean ± sd)": ", ".join(metrics),
            "best, after\nfull steps": "none",
        }
        if best:
            row["best, after\nfull steps"] = f"{best['metric']:.5g}, {best['full_steps']:,.0f}"
        rows.append(row)
    return rows


def _notes(
    results: Mapping[str, Any], config: AuditConfig, times: Mapping[str, float]
) -> Iterator[str]:
    """Tell what a reader of the results should know besides the verdict, in sentences."""
    summary = results["summary"]
    readings = []
    for name, (arm, without, made) in _MECHANISMS.items():
        found = results["paired"][f"{arm} - {without}"]
        gained = ""
        reading = "none was made, so there is no gain from them"
        if summary[arm][made]:
            reading = _reading(found, config)
        if summary[arm][made] and found["n"]:
            more = round(summary[arm]["full_steps"] - summary[without]["full_steps"])
            after = f", after {more:+,} full steps" if more else ""
            gain = signed(-config.sign * found["mean"], found["sd"])
            gained = f" gained {gain} ({arm} against {without}{after})"
        readings.append(reading)
        yield f"{name.capitalize()}{gained}: {reading}."
    if times:
        yield (
            f"In seconds, without validation, the hybrid arm took {times[HYBRID]:.2f} times as "
            f"long as the full arm, the corrected arm {times[CORRECTED]:.2f} times."
        )
    else:
        yield "Other work on the machine has disturbed the seconds: do not compare them."
    for name in config.controls:
        gap = results["paired"][f"{name} - {FULL}"]["mean"]
        if gap is not None and config.sign * gap < 0:
            yield f"The control {name} ends better than the full arm: tune plain training first."
    corrected, predicted = readings
    if corrected == "better" and predicted in (_ALIKE, "worse"):
        how = "is better" if predicted == "worse" else "may do as well"
        yield (
            f"Correction alone {how}: train with HybridPredict(speedup=1) for "
            f"{summary[CORRECTED]['full_steps']:,.0f} full steps, with a schedule of that length."
        )
    yield from _events(results["runs"])


def _reading(found: Mapping[str, Any], config: AuditConfig) -> str:
    """Return whether a difference of arms makes the metric better."""
    if found["n"] < FEW_SEEDS:
        return "too few seeds to tell"
    worst, best = sorted(-config.sign * found[end] for end in ("lower", "upper"))
    if worst <= 0.0 <= best:
        return _ALIKE
    return "better" if worst > 0.0 else "worse"


def _times(summary: Mapping[str, Any], runs: Sequence[FinishedRun]) -> dict[str, float]:
    """Return the seconds of each arm per second of the full arm; none if they were disturbed.

    They were disturbed if a corrected full step took less time than a plain one. They also were if
    an arm's full steps took twice as long with one seed as with another.
    """
    per_step: dict[str, list[float]] = {}
    for run in runs:
        per_step.setdefault(run["arm"], []).append(run["seconds"] / run["full_steps"])
    uneven = any(max(each) > 2.0 * min(each) for each in per_step.values())
    if uneven or fmean(per_step[CORRECTED]) < fmean(per_step[FULL]):
        return {}
    return {name: arm["seconds"] / summary[FULL]["seconds"] for name, arm in summary.items()}


def _events(runs: list[Mapping[str, Any]]) -> Iterator[str]:
    """Tell events, but for pauses of runs in which predicted steps were made all the same."""
    hybrid = [run for run in runs if run["arm"] == HYBRID]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in hybrid:
        for event in (run["ledger"] or {}).get("events", []):
            if not (run["predicted_steps"] and event["reason"].startswith(f"{UNPREDICTED} ")):
                found.setdefault(event["reason"], []).append(event)
    for reason, each in found.items():
        yield f"In {len(each)} of {len(hybrid)} hybrid runs, at first {when(each[0])}: {reason}."
