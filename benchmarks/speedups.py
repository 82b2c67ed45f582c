"""Speedup at equal quality of an arm, from runs paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t  # type: ignore[import-untyped,unused-ignore]

from hybrid_predict.runs.evidence import plain_steps_to_reach


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
    n = len(arm)
    tail = float(norm.sf(math.sqrt(n / (n - 1)) * float(t.isf(0.025, n - 1))))
    low, high = np.quantile([measure(draw)[0] for draw in draws], [tail, 1.0 - tail])
    return Speedup(value, bound, float(low), float(high), len(arm))
