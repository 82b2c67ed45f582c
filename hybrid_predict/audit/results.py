"""What the results file of an audit holds."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.mechanisms import advice, earned
from hybrid_predict.audit.meter import NOT_FINITE
from hybrid_predict.audit.verdict import AuditVerdict, PairedSeed, judge_audit, percent
from hybrid_predict.runs.evidence import (
    ARMS,
    AT_LEAST,
    AT_MOST,
    CORRECTED,
    FULL,
    HYBRID,
    SHORT,
    plain_steps_to_reach,
    spread,
)
from hybrid_predict.runs.runtime import environment, finite

SCHEMA = 4
"""Of the results file: what its fields mean."""


class Finished:
    """What an audit or a search leaves behind, whole or not."""

    results: Mapping[str, Any]

    @property
    def partial(self) -> bool:
        """Whether the user stopped it before its answer was final."""
        return bool(self.results["partial"])


Run = Mapping[str, Any]
Runs = Sequence[Mapping[str, Any]]


def make_results(
    config: AuditConfig, depends_on: Mapping[str, Any], runs: Runs
) -> tuple[dict[str, Any], AuditVerdict]:
    """Everything that the results file holds, as plain data; non-finite numbers become None.

    Args:
        config: The audit's configuration.
        depends_on: What finished arms depend on.
        runs: Entries of the finished arms.

    Returns:
        The results, and the verdict on them.
    """
    verdict = judge_audit(paired_seeds(runs), config)
    planned = len(config.arms) * config.seeds
    results = {
        "schema": SCHEMA,
        "partial": len(runs) < planned,
        "planned_runs": planned,
        "seeds": list(range(config.seeds)),
        "environment": environment(),
        "config": config.to_dict(),
        "hybrid_config": config.hybrid_config().to_dict(),
        "depends_on": dict(depends_on),
        "notes": _notes(runs, config),
        "runs": list(runs),
        "summary": _summary(runs, config),
        "paired": _paired(runs, config),
        "plain_steps_to_reach": _plain_steps(runs, config),
        "earned": earned(list(by_seed(runs).values()), config),
        "verdict": verdict.to_dict(),
    }
    plain: dict[str, Any] = finite(results)
    return plain, verdict


def by_seed(runs: Runs) -> dict[int, dict[str, Mapping[str, Any]]]:
    """The runs of every seed that has all arms, controls aside, by the arm's name."""
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault(run["seed"], {})[run["arm"]] = run
    return {seed: arms for seed, arms in sorted(found.items()) if arms.keys() >= set(ARMS)}


def paired_seeds(runs: Runs) -> list[PairedSeed]:
    """What the verdict is about: the seeds that have all arms."""
    return [paired(arms[FULL], arms[SHORT], arms[HYBRID]) for arms in by_seed(runs).values()]


def paired(full: Run, short: Run, hybrid: Run) -> PairedSeed:
    """What a verdict compares of one seed, from the entries of its arms.

    A search judges the corrected arm in the place of the hybrid one.
    """
    named = zip((FULL, SHORT, HYBRID), (full, short, hybrid), strict=True)
    return PairedSeed(
        full=_metric(full),
        short=_metric(short),
        hybrid=_metric(hybrid),
        full_steps=full["full_steps"],
        short_steps=short["full_steps"],
        hybrid_steps=hybrid["full_steps"],
        unmeasured=frozenset(name for name, run in named if run["failure"] == NOT_FINITE),
    )


def _metric(run: Mapping[str, Any]) -> float:
    return math.nan if run["failure"] else float(run["metric"])


def _summary(runs: Runs, config: AuditConfig) -> dict[str, Any]:
    summary = {}
    for name in config.arms:
        mine = [run for run in runs if run["arm"] == name]
        if not mine:
            continue
        means = ("full_steps", "predicted_steps", "undone_steps", "steps", "seconds")
        summary[name] = {
            "metric": spread([run["metric"] for run in mine if not run["failure"]]),
            **{key: statistics.fmean(run[key] for run in mine) for key in means},
            "failures": Counter(run["failure"] for run in mine if run["failure"]),
        }
    return summary


def _paired(runs: Runs, config: AuditConfig) -> dict[str, Any]:
    """Differences of the metric, signs as they are, over the seeds where both are finite."""
    pairs = [(HYBRID, FULL), (HYBRID, SHORT), (HYBRID, CORRECTED), (CORRECTED, FULL)]
    pairs += [(CORRECTED, SHORT), *((HYBRID, name) for name in config.controls)]
    complete = by_seed(runs).values()
    return {
        f"{left} - {right}": spread(
            [
                arms[left]["metric"] - arms[right]["metric"]
                for arms in complete
                if right in arms and not (arms[left]["failure"] or arms[right]["failure"])
            ]
        )
        for left, right in pairs
    }


def _plain_steps(runs: Runs, config: AuditConfig) -> dict[str, Any]:
    """Full steps of plain training to where the corrected and the hybrid arm end.

    Interpolated between the means of the short and the full arm, over the seeds that have all arms
    and no failure.
    """
    sound = [a for a in by_seed(runs).values() if not any(a[name]["failure"] for name in ARMS)]
    if not sound:
        return {}
    sign = 1.0 if config.mode == "min" else -1.0
    ends = {name: sign * statistics.fmean(arms[name]["metric"] for arms in sound) for name in ARMS}
    steps = [statistics.fmean(arms[name]["full_steps"] for arms in sound) for name in (SHORT, FULL)]
    plain = [ends[SHORT], ends[FULL]]
    return {
        name: asdict(plain_steps_to_reach(steps, plain, ends[name])) for name in (CORRECTED, HYBRID)
    }


def _notes(runs: Runs, config: AuditConfig) -> list[str]:
    """What a reader of the verdict should know about how the arms came out."""
    complete = list(by_seed(runs).values())
    notes = _notes_on_length(complete, config) if complete else []
    notes += [_said(name, found) for name, found in _plain_steps(runs, config).items()]
    notes += _notes_on_controls(complete, config)
    events = [
        f"{event['reason']} (seed {run['seed']}, full step {event['step']:,})"
        for run in runs
        for event in (run["ledger"] or {}).get("events", [])
        if run["arm"] == HYBRID
    ]
    return notes + [f"Hybrid arm: {event}." for event in events]


def _said(arm: str, found: Mapping[str, Any]) -> str:
    """How many plain full steps end where an arm does."""
    if found["bound"] == AT_LEAST:
        return f"The {arm} arm ends better than plain training of {found['steps']:,.0f} full steps."
    if found["bound"] == AT_MOST:
        return f"The {arm} arm ends worse than plain training of {found['steps']:,.0f} full steps."
    return (
        f"Plain training would need about {found['steps']:,.0f} full steps to end where the {arm} "
        "arm does, by interpolation between the short and the full arm."
    )


def _notes_on_controls(complete: Sequence[Mapping[str, Any]], config: AuditConfig) -> list[str]:
    """Which controls end better than the full arm."""
    notes, sign = [], 1.0 if config.mode == "min" else -1.0
    for name in config.controls:
        pairs = [(arms[name], arms[FULL]) for arms in complete if name in arms]
        sound = [
            sign * (one["metric"] - full["metric"])
            for one, full in pairs
            if not (one["failure"] or full["failure"])
        ]
        if sound and statistics.fmean(sound) < 0:
            notes.append(
                f"The control {name} ends better than the full arm: tune plain training first, and "
                "audit it as it is then."
            )
    return notes


def _notes_on_length(complete: Sequence[Mapping[str, Any]], config: AuditConfig) -> list[str]:
    """Seconds and full steps of the arms, and what follows for a run of one's own."""
    seconds = {
        name: statistics.median(arms[name]["seconds"] / arms[FULL]["seconds"] for arms in complete)
        for name in (HYBRID, CORRECTED)
    }
    notes = [
        f"In seconds, validation left out, the hybrid arm took {seconds[HYBRID]:.2f} times as long "
        f"as the full arm, the corrected arm {seconds[CORRECTED]:.2f} times (medians over seeds). "
        "On small models corrected updates cost a larger share of a full step than on large ones."
    ]
    short = statistics.fmean(arms[SHORT]["full_steps"] for arms in complete)
    hybrid = statistics.fmean(arms[HYBRID]["full_steps"] for arms in complete)
    total = complete[0][FULL]["total_steps"]
    due = total / config.speedup
    if short > due + 1:
        notes.append(
            f"The short and the corrected arm take {short:,.0f} full steps instead of {due:,.0f}, "
            "because epochs are rounded up: these arms never get fewer steps than they should."
        )
    if hybrid > 1.01 * due:
        notes.append(
            f"The hybrid arm took {hybrid:,.0f} full steps instead of {due:,.0f}: some predicted "
            f"steps were not made, or were undone. Its saving is {percent(1 - hybrid / total)}."
        )
    if said := advice(earned(complete, config), complete[0][CORRECTED]["full_steps"]):
        notes.append(said)
    return notes
