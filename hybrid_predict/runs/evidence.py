"""Statistics of paired runs: spread over seeds, confidence bounds, plain steps to reach a loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FULL = "full"
SHORT = "short"
CORRECTED = "corrected"
HYBRID = "hybrid"
ARMS = (FULL, SHORT, CORRECTED, HYBRID)
"""Arms of a comparison, as each seed trains them: plain training of N steps; plain training of
fewer steps; as many with corrected updates; N with corrected updates, some of them predicted."""

FEW_SEEDS = 5
"""Results from fewer paired seeds are called a hint."""

LEAST_SAVING = 0.01
"""Smaller shares of full steps saved count as none."""

EXACT = ""
AT_LEAST = "≥"
AT_MOST = "≤"
"""Whether a number is interpolated, or a bound because it lies outside the range measured."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation (None below two values) and number of values."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
    }


def mean_and_sd(spread: Mapping[str, Any], places: int | None = None) -> str:
    """Format a mean ± standard deviation; without ``places`` the latter has two digits."""
    mean = spread["mean"]
    sd = spread["sd"]
    if mean is None:
        return "not finite" if spread["n"] else "none"
    if places is None:
        if not sd:
            return f"{mean:.5g}"
        places = max(0, 1 - math.floor(math.log10(sd)))
    shown = f"{mean:,.{places}f}"
    return shown if sd is None else f"{shown} ± {sd:,.{places}f}"


@dataclass(frozen=True)
class Bounds:
    """Mean and sample standard deviation over n seeds, with one-sided confidence bounds."""

    mean: float
    sd: float
    lower: float
    upper: float
    n: int


def bounds(values: Sequence[float], alpha: float) -> Bounds:
    r"""Return one-sided confidence bounds of a mean, each at confidence ``1 - alpha``.

    .. math:: \bar x \pm t_{1 - \alpha, n - 1} \operatorname{sd}(x) / \sqrt n
    """
    from scipy.stats import t  # type: ignore[import-untyped,unused-ignore]

    n = len(values)
    mean = statistics.fmean(values)
    sd = statistics.stdev(values)
    reach = float(t.isf(alpha, n - 1)) * sd / math.sqrt(n)
    return Bounds(mean, sd, mean - reach, mean + reach, n)


@dataclass(frozen=True)
class PlainSteps:
    """A number of plain full steps; for a bound, the nearest number that was measured."""

    steps: float
    bound: str = EXACT


def plain_steps_to_reach(
    steps: Sequence[float], losses: Sequence[float], loss: float
) -> PlainSteps:
    r"""Return the fewest full steps with which plain training reaches a given loss.

    Between two runs, each with a schedule of its own length, the loss is interpolated linearly in
    the logarithm of the steps. A run whose final loss is not finite, or not below that of a shorter
    run, is skipped. If the loss is outside the range of the plain losses, the number is a bound.
    """
    known: list[tuple[float, float]] = []
    for budget, value in zip(steps, losses, strict=True):
        if math.isfinite(value) and (not known or value < known[-1][1]):
            known.append((budget, value))
    if not math.isfinite(loss) or not known or loss > known[0][1]:
        return PlainSteps(known[0][0] if known else steps[0], AT_MOST)
    if loss < known[-1][1]:
        return PlainSteps(known[-1][0], AT_LEAST)
    falling = [-value for _, value in known]
    return PlainSteps(math.exp(np.interp(-loss, falling, [math.log(n) for n, _ in known])))
