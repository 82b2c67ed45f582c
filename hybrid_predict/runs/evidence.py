"""Arms of a comparison, and statistics over seeds: spread and confidence bounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
