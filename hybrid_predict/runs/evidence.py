"""Statistics of paired runs: spread over seeds, confidence bounds, speedup at equal quality."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_predict.errors import MissingExtraError

FULL, SHORT, CORRECTED, HYBRID = "full", "short", "corrected", "hybrid"
"""Arms of a comparison: plain training of N steps; plain training of fewer steps; as many with
corrected updates; and N steps with corrected updates, some of them predicted."""

ARMS = (FULL, SHORT, CORRECTED, HYBRID)
"""The arms in the order in which each seed trains them."""

FEW_SEEDS = 5
"""Results from fewer paired seeds are called a hint."""

LEAST_SAVING = 0.01
"""Smaller shares of full steps saved count as none."""

EXACT, AT_LEAST, AT_MOST = "", "≥", "≤"
"""Whether a number is interpolated, or a bound because it lies outside the range measured."""


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation (None below two values) and number of values."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
    }


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

    Raises:
        MissingExtraError: If scipy is not installed.
    """
    n = len(values)
    mean = statistics.fmean(values)
    sd = statistics.stdev(values)
    reach = float(_distributions().t.isf(alpha, n - 1)) * sd / math.sqrt(n)
    return Bounds(mean, sd, mean - reach, mean + reach, n)


def _distributions() -> Any:
    try:
        from scipy import stats  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("Confidence bounds", "cli") from error
    return stats


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


@dataclass(frozen=True)
class Speedup:
    """Plain full steps to reach an arm's loss, per full step spent, with a 95 % interval.

    The interval is None below two seeds; a resample outside the measured range counts with its end.
    """

    value: float
    bound: str
    low: float | None
    high: float | None
    seeds: int


def speedup(
    steps: Sequence[float],
    plain: Sequence[Sequence[float]],
    losses: Sequence[float],
    costs: Sequence[float],
    resamples: int = 2000,
) -> Speedup:
    r"""Return the speedup of an arm at equal quality, from runs paired by seed.

    Expanded percentile bootstrap: seeds are drawn with replacement, the same ones for the plain
    curve and for the arm, and means are formed before they are compared. With few seeds percentile
    intervals are too narrow, so the 95 % interval ends at the quantiles

    .. math:: \alpha' = \Phi\left(\pm\sqrt{n / (n - 1)} \; t_{0.975, n - 1}\right)

    (Hesterberg, "What teachers should know about the bootstrap", 2015).

    Args:
        steps: Full steps of the plain runs, ascending.
        plain: Their losses: one row per number of steps, one column per seed.
        losses: Losses of the arm by seed.
        costs: Full steps of the arm by seed.
        resamples: Number of resamples.

    Raises:
        MissingExtraError: If scipy is not installed.
    """
    curve, arm, cost = (np.asarray(x, dtype=float) for x in (plain, losses, costs))

    def measure(chosen: np.ndarray) -> tuple[float, str]:
        reached = plain_steps_to_reach(
            steps, curve[:, chosen].mean(axis=1).tolist(), float(arm[chosen].mean())
        )
        return reached.steps / float(cost[chosen].mean()), reached.bound

    everyone = np.arange(len(arm))
    value, bound = measure(everyone)
    if len(arm) < 2:
        return Speedup(value, bound, None, None, len(arm))
    draws = np.random.default_rng(0).choice(everyone, (resamples, len(arm)))
    laws, n = _distributions(), len(arm)
    tail = float(laws.norm.sf(math.sqrt(n / (n - 1)) * float(laws.t.isf(0.025, n - 1))))
    low, high = np.quantile([measure(draw)[0] for draw in draws], [tail, 1.0 - tail])
    return Speedup(value, bound, float(low), float(high), len(arm))
