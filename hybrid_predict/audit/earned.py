"""What corrected updates and predicted steps have each earned, at about as many full steps.

With s, k and h for the final metric of the short, the corrected and the hybrid arm, signs turned so
that less is better, corrected updates earned s - k and predicted steps k - h, as means over paired
seeds. Seeds without a predicted step that stands are left out of what predicted steps earned: there
the hybrid arm is the corrected arm with more full steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.verdict import signed
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, HYBRID, SHORT, bounds, spread

CORRECTION, PREDICTION = "corrected updates", "predicted steps"

NONE_MADE = "none was made, so none earned anything"
"""Reading of predicted steps if no seed has any that stand."""


def earned(
    seeds: Sequence[Mapping[str, Mapping[str, Any]]], config: AuditConfig
) -> dict[str, dict[str, Any]]:
    """Return what each mechanism has earned.

    Args:
        seeds: The runs by arm, for every seed that has all arms.
        config: Gives mode and level.

    Returns:
        By mechanism: ``without`` and ``with``, the arms compared; ``mean``, ``sd`` and ``n`` of the
        gain, positive if the mechanism made the metric better; its bounds ``lower`` and ``upper``,
        None below two seeds; ``more_full_steps``, the mean of the full steps that the arm with the
        mechanism took beyond those of the other; ``idle``, the number of seeds left out; and
        ``reading``, the bounds in words.
    """
    gains = {}
    compared = ((CORRECTION, SHORT, CORRECTED), (PREDICTION, CORRECTED, HYBRID))
    for mechanism, without, arm in compared:
        pairs = [(arms[without], arms[arm]) for arms in seeds]
        finite = [pair for pair in pairs if not any(run["failure"] for run in pair)]
        used = [pair for pair in finite if mechanism != PREDICTION or pair[1]["predicted_steps"]]
        values = [config.sign * (one["metric"] - other["metric"]) for one, other in used]
        limits = bounds(values, config.alpha) if len(values) > 1 else None
        lower, upper = (limits.lower, limits.upper) if limits else (None, None)
        idle = len(finite) - len(used)
        gains[mechanism] = {
            "without": without,
            "with": arm,
            **spread(values),
            "lower": lower,
            "upper": upper,
            "more_full_steps": spread([b["full_steps"] - a["full_steps"] for a, b in used])["mean"],
            "idle": idle,
            "reading": NONE_MADE if idle and not used else _reading(len(values), lower, upper),
        }
    return gains


def _reading(n: int, lower: float | None, upper: float | None) -> str:
    if n < FEW_SEEDS or lower is None or upper is None:
        return "too few seeds to tell"
    if lower > 0:
        return "better"
    return "worse" if upper < 0 else "no difference that these seeds can show"


def sentences(gains: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each mechanism, from the result of :func:`earned`."""
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


def advice(
    gains: Mapping[str, Mapping[str, Any]], seeds: Sequence[Mapping[str, Mapping[str, Any]]]
) -> str:
    """Return what to try if only corrected updates have earned something; else an empty text."""
    predicted, corrected = gains[PREDICTION], gains[CORRECTION]
    if min(predicted["n"], corrected["n"]) < FEW_SEEDS:
        return ""
    if predicted["lower"] > 0 or corrected["lower"] <= 0:
        return ""
    how = "is better" if predicted["upper"] < 0 else "may do as well"
    return (
        f"Correction alone {how}: train with HybridPredict(speedup=1) for "
        f"{seeds[0][CORRECTED]['full_steps']:,} full steps, with a schedule of that length."
    )
