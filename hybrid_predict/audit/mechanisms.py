"""What corrected updates and predicted steps have each earned, at as many full steps.

With s, k and h for the final metric of the short, the corrected and the hybrid arm, signs turned so
that less is better, corrected updates earned s - k and predicted steps earned k - h. The three arms
take as many full steps if no predicted step is undone; each difference is a mean over paired seeds
between one-sided bounds. Seeds in which no predicted step stands say nothing of predicted steps:
there the hybrid arm is the corrected one with more full steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.verdict import signed
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, HYBRID, SHORT, bounds, spread

CORRECTION, PREDICTION = "corrected updates", "predicted steps"

NONE_MADE = "none was made, so none earned anything"
"""What is said of predicted steps if no seed has any that stand."""

_COMPARED = {CORRECTION: (SHORT, CORRECTED), PREDICTION: (CORRECTED, HYBRID)}


def earned(seeds: Sequence[Mapping[str, Any]], config: AuditConfig) -> dict[str, dict[str, Any]]:
    """What each mechanism has earned.

    Args:
        seeds: For every seed that has all arms, their entries of the results file by name.
        config: Gives mode and level.

    Returns:
        By mechanism: ``without`` and ``with``, the arms compared; ``mean``, ``sd`` and ``n`` of
        what was gained, positive if the mechanism made the metric better, over the ``n`` seeds in
        which the mechanism did anything; its bounds ``lower`` and ``upper``, None below two seeds;
        ``more_full_steps``, how many full steps the arm with the mechanism took beyond those of the
        other, a mean; ``idle``, the number of seeds in which it did nothing; and ``reading``, what
        the bounds say.
    """
    sign = 1.0 if config.mode == "min" else -1.0
    found = {}
    for mechanism, (without, with_it) in _COMPARED.items():
        pairs = [(arms[without], arms[with_it]) for arms in seeds]
        finite = [pair for pair in pairs if not any(run["failure"] for run in pair)]
        sound = [pair for pair in finite if mechanism != PREDICTION or pair[1]["predicted_steps"]]
        idle = len(finite) - len(sound)
        gains = [sign * (one["metric"] - other["metric"]) for one, other in sound]
        more = [other["full_steps"] - one["full_steps"] for one, other in sound]
        limits = bounds(gains, config.alpha) if len(gains) > 1 else None
        lower, upper = (limits.lower, limits.upper) if limits else (None, None)
        found[mechanism] = {
            "without": without,
            "with": with_it,
            **spread(gains),
            "lower": lower,
            "upper": upper,
            "more_full_steps": spread(more)["mean"],
            "idle": idle,
            "reading": NONE_MADE if idle and not sound else _reading(len(gains), lower, upper),
        }
    return found


def sentences(found: Mapping[str, dict[str, Any]]) -> list[str]:
    """One sentence per mechanism on what it has earned, from what :func:`earned` gave."""
    said = []
    for name, gain in found.items():
        if gain["n"]:
            sd = "" if gain["sd"] is None else f" ± {gain['sd']:.2g}"
            what = f"gained {signed(gain['mean'])}{sd}"
            compared = f"({gain['with']} against {gain['without']}{_longer(gain)})"
            idle = f" Seeds without any are left out: {gain['idle']}." if gain["idle"] else ""
            said.append(f"{name[0].upper()}{name[1:]} {what} {compared}: {gain['reading']}.{idle}")
        elif gain["idle"]:
            said.append(f"{name[0].upper()}{name[1:]}: {gain['reading']}.")
    return said


def _longer(gain: Mapping[str, Any]) -> str:
    """How many more full steps the arm with a mechanism took, or fewer; empty if as many."""
    more = round(gain["more_full_steps"] or 0)
    what = "full step" if abs(more) == 1 else "full steps"
    return f", after {abs(more):,} {'more' if more > 0 else 'fewer'} {what}" if more else ""


def _reading(n: int, lower: float | None, upper: float | None) -> str:
    """What a gain over so many seeds, and its bounds, say."""
    if n < FEW_SEEDS or lower is None or upper is None:
        return "too few seeds to tell"
    if lower > 0:
        return "better"
    return "worse" if upper < 0 else "no difference that these seeds can show"


def advice(found: Mapping[str, dict[str, Any]], short: int) -> str:
    """What to try if predicted steps have earned nothing; empty if they have earned something.

    Args:
        found: What :func:`earned` gave.
        short: Full steps of the corrected arm.
    """
    predicted, corrected = found[PREDICTION], found[CORRECTION]
    told = predicted["n"] >= FEW_SEEDS and corrected["n"] >= FEW_SEEDS
    if not told or predicted["lower"] > 0 or corrected["lower"] <= 0:
        return ""
    how = "is better" if predicted["upper"] < 0 else "may do as well"
    return (
        f"Correction alone {how}: train with HybridPredict(speedup=1) for {short:,} full steps, "
        "with a schedule of that length."
    )
