"""Contents of the results file of an audit: a view of its finished runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from hybrid_predict.audit.config import AUTO, AuditConfig
from hybrid_predict.audit.meter import NOT_FINITE
from hybrid_predict.audit.store import SCHEMA, FinishedRun
from hybrid_predict.audit.verdict import AuditVerdict, PairedSeed, judge_audit, percent, signed
from hybrid_predict.policy.policy import AFTERWARDS
from hybrid_predict.runs.evidence import (
    ARMS,
    AT_LEAST,
    AT_MOST,
    CORRECTED,
    FEW_SEEDS,
    FULL,
    HYBRID,
    SHORT,
    bounds,
    plain_steps_to_reach,
    spread,
)
from hybrid_predict.runs.runtime import environment, finite

MEANS = ("full_steps", "predicted_steps", "undone_steps", "steps", "seconds")
"""Numbers of a run whose means over the seeds are in the summary."""

MECHANISMS = {
    "corrected updates": (SHORT, CORRECTED, "corrected_steps"),
    "predicted steps": (CORRECTED, HYBRID, "predicted_steps"),
}
"""The arms without and with each mechanism, and what counts its steps."""


def make_results(
    config: AuditConfig, depends_on: Mapping[str, Any], runs: Sequence[FinishedRun]
) -> tuple[dict[str, Any], AuditVerdict]:
    """Return the content of the results file as plain data, and the verdict."""
    seeds = _Seeds(config, runs)
    compared = [paired(arms[FULL], arms[SHORT], arms[HYBRID]) for arms in seeds.complete]
    verdict = judge_audit(compared, config)
    planned = len(config.arms) * config.seeds
    results: dict[str, Any] = finite(
        {
            "schema": SCHEMA,
            "partial": len(runs) < planned,
            "planned_runs": planned,
            "seeds": list(range(config.seeds)),
            "environment": environment(),
            "config": config.to_dict(),
            "hybrid_config": config.hybrid_config().to_dict(),
            "depends_on": dict(depends_on),
            "notes": [
                *dict.fromkeys(text for run in runs for text in run["left_out"]),
                *seeds.length_notes(),
                *seeds.comparisons(),
                *seeds.advice(),
                *_events(runs),
            ],
            "runs": list(runs),
            "summary": _summary(runs, config),
            "paired": seeds.differences(),
            "plain_steps_to_reach": seeds.plain_steps(),
            "earned": seeds.earned(),
            "verdict": verdict.to_dict(),
        }
    )
    return results, verdict


def paired(full: FinishedRun, short: FinishedRun, hybrid: FinishedRun) -> PairedSeed:
    """Return what a verdict compares of one seed; a search may give another arm as ``hybrid``."""
    named = {FULL: full, SHORT: short, HYBRID: hybrid}
    return PairedSeed(
        **{n: math.nan if run["failure"] else float(run["metric"]) for n, run in named.items()},
        full_steps=full["full_steps"],
        short_steps=short["full_steps"],
        hybrid_steps=hybrid["full_steps"],
        unmeasured=frozenset(name for name, run in named.items() if run["failure"] == NOT_FINITE),
    )


def sentences(gains: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each mechanism, from ``earned`` of the results."""
    lines = []
    for name, gain in gains.items():
        title = f"{name[0].upper()}{name[1:]}"
        if gain["n"]:
            sd = "" if gain["sd"] is None else f" ± {gain['sd']:.2g}"
            more = round(gain["more_full_steps"] or 0)
            word = "more" if more > 0 else "fewer"
            steps = f"{abs(more):,} {word} full step" + "s" * (abs(more) != 1)
            compared = f"{gain['with']} against {gain['without']}" + f", after {steps}" * bool(more)
            idle = f" Seeds without any are left out: {gain['idle']}." if gain["idle"] else ""
            lines.append(
                f"{title} gained {signed(gain['mean'])}{sd} ({compared}): {gain['reading']}.{idle}"
            )
        elif gain["idle"]:
            lines.append(f"{title}: {gain['reading']}.")
    return lines


def _summary(runs: Sequence[FinishedRun], config: AuditConfig) -> dict[str, Any]:
    summary = {}
    for name in config.arms:
        if arm := [run for run in runs if run["arm"] == name]:
            summary[name] = {
                "metric": spread([run["metric"] for run in arm if not run["failure"]]),
                **{key: fmean(run[key] for run in arm) for key in MEANS},
                "failures": Counter(run["failure"] for run in arm if run["failure"]),
            }
    return summary


def _events(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Tell each event of the hybrid arm once, with the seeds that had it, and since when."""
    places: dict[str, list[str]] = {}
    for run in runs:
        for event in (run["ledger"] or {}).get("events", []) if run["arm"] == HYBRID else ():
            reason = event["reason"]
            text = AFTERWARDS.get(reason, reason) if run["predicted_steps"] else reason
            where = f"full step {event['step']:,} of seed {run['seed']}"
            places.setdefault(text, []).append(where)
    for text, each in places.items():
        yield f"Hybrid arm: {text} (first at {', '.join(each)})."


class _Seeds:
    """The seeds that have all arms, controls apart, and what they say about the arms."""

    def __init__(self, config: AuditConfig, runs: Sequence[FinishedRun]) -> None:
        by_seed: dict[int, dict[str, FinishedRun]] = {}
        for run in runs:
            by_seed.setdefault(run["seed"], {})[run["arm"]] = run
        self.config = config
        self.complete = [arms for _, arms in sorted(by_seed.items()) if arms.keys() >= set(ARMS)]

    def pairs(self, left: str, right: str) -> list[tuple[FinishedRun, FinishedRun]]:
        """Return the runs of two arms, for the seeds where both have a metric."""
        both = [arms for arms in self.complete if {left, right} <= arms.keys()]
        pairs = [(arms[left], arms[right]) for arms in both]
        return [(a, b) for a, b in pairs if not (a["failure"] or b["failure"])]

    def gaps(self, left: str, right: str) -> list[float]:
        """Return the differences of two arms' metrics."""
        return [a["metric"] - b["metric"] for a, b in self.pairs(left, right)]

    def differences(self) -> dict[str, Any]:
        """Return mean and deviation of the differences of arms."""
        pairs = [(HYBRID, FULL), (HYBRID, SHORT), (HYBRID, CORRECTED), (CORRECTED, FULL)]
        pairs += [(CORRECTED, SHORT), *((HYBRID, name) for name in self.config.controls)]
        return {f"{left} - {right}": spread(self.gaps(left, right)) for left, right in pairs}

    def earned(self) -> dict[str, dict[str, Any]]:
        """Return by mechanism what it has earned, at about as many full steps.

        Gains are positive if the metric became better. Seeds without a step of the mechanism that
        stands are ``idle`` and left out: without predicted steps, the hybrid arm is the corrected
        arm with more full steps. Bounds are None below two seeds.
        """
        gains = {}
        for mechanism, (without, arm, made) in MECHANISMS.items():
            pairs = self.pairs(without, arm)
            used = [pair for pair in pairs if pair[1][made]]
            values = [self.config.sign * (one["metric"] - other["metric"]) for one, other in used]
            limits = bounds(values, self.config.alpha) if len(values) > 1 else None
            reading = "no difference that these seeds can show"
            if pairs and not used:
                reading = "none was made, so there is no gain from them"
            elif limits is None or len(values) < FEW_SEEDS:
                reading = "too few seeds to tell"
            elif limits.lower > 0 or limits.upper < 0:
                reading = "better" if limits.lower > 0 else "worse"
            more = spread([other["full_steps"] - one["full_steps"] for one, other in used])
            gains[mechanism] = {
                "without": without,
                "with": arm,
                **spread(values),
                "lower": limits and limits.lower,
                "upper": limits and limits.upper,
                "more_full_steps": more["mean"],
                "idle": len(pairs) - len(used),
                "reading": reading,
            }
        return gains

    def plain_steps(self) -> dict[str, Any]:
        """Return the full steps of plain training that end where the other two arms do.

        Interpolated between the means of the short and the full arm, over the seeds without a
        failure.
        """
        sound = [arms for arms in self.complete if not any(arms[a]["failure"] for a in ARMS)]
        if not sound:
            return {}
        steps = [fmean(arms[name]["full_steps"] for arms in sound) for name in (SHORT, FULL)]
        ends = {
            name: self.config.sign * fmean(arms[name]["metric"] for arms in sound) for name in ARMS
        }
        plain = [ends[SHORT], ends[FULL]]
        return {
            name: asdict(plain_steps_to_reach(steps, plain, ends[name]))
            for name in (CORRECTED, HYBRID)
        }

    def comparisons(self) -> Iterator[str]:
        """Compare arms with plain training of other lengths, and controls with the full arm."""
        for arm, plain in self.plain_steps().items():
            steps = f"{plain['steps']:,.0f} full steps"
            if plain["bound"] in (AT_LEAST, AT_MOST):
                how = "better" if plain["bound"] == AT_LEAST else "worse"
                yield f"The {arm} arm ends {how} than plain training of {steps}."
            else:
                yield (
                    f"Plain training would need about {steps} to end where the {arm} arm does, by "
                    "interpolation between the short and the full arm."
                )
        for name in self.config.controls:
            gaps = self.gaps(name, FULL)
            if gaps and self.config.sign * fmean(gaps) < 0:
                yield (
                    f"The control {name} ends better than the full arm: tune plain training first, "
                    "then audit the tuned training."
                )

    def advice(self) -> Iterator[str]:
        """Tell what to try if only corrected updates have earned something."""
        corrected, predicted = self.earned().values()
        few = min(predicted["n"], corrected["n"]) < FEW_SEEDS
        if few or predicted["lower"] > 0 or corrected["lower"] <= 0:
            return
        how = "is better" if predicted["upper"] < 0 else "may do as well"
        yield (
            f"Correction alone {how}: train with HybridPredict(speedup=1) for "
            f"{self.complete[0][CORRECTED]['full_steps']:,} full steps, with a schedule of that "
            "length."
        )

    def length_notes(self) -> Iterator[str]:
        """Tell seconds and full steps of the arms, where they are not as planned."""
        if not self.complete:
            return
        hybrid_time, corrected_time = (
            median(arms[name]["seconds"] / arms[FULL]["seconds"] for arms in self.complete)
            for name in (HYBRID, CORRECTED)
        )
        short, hybrid = (
            fmean(arms[name]["full_steps"] for arms in self.complete) for name in (SHORT, HYBRID)
        )
        total = self.complete[0][FULL]["total_steps"]
        speedup = self.config.speedup
        due = hybrid if isinstance(speedup, str) else total / speedup
        yield (
            f"In seconds, without validation, the hybrid arm took {hybrid_time:.2f} times as long "
            f"as the full arm, the corrected arm {corrected_time:.2f} times (medians over seeds). "
            "On small models corrected updates cost a larger share of a full step than on large "
            "ones."
        )
        if short > due + 1:
            yield (
                f"The short and the corrected arm take {short:,.0f} full steps instead of "
                f"{due:,.0f}, because epochs are rounded up: these arms never get fewer steps than "
                "they should."
            )
        if speedup == AUTO:
            taken = sorted({arms[HYBRID]["full_steps"] for arms in self.complete})
            span = " to ".join(f"{steps:,}" for steps in (taken[0], taken[-1])[: len(taken)])
            yield (
                f'With "auto" the hybrid arm took {span} of {total:,} full steps. The short and '
                "the corrected arm of each seed take as many as it took."
            )
        if hybrid > 1.01 * due:
            made = any(arms[HYBRID]["predicted_steps"] for arms in self.complete)
            some = "some predicted steps were not made, or were undone"
            yield (
                f"The hybrid arm took {hybrid:,.0f} full steps instead of {due:,.0f}: "
                f"{some if made else 'no predicted step was made, or stands'}. Its saving is "
                f"{percent(1 - hybrid / total)}."
            )
