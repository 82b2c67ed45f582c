"""What runs gain: statistics of their rows, and speedups at equal quality, paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm, t  # type: ignore[import-untyped,unused-ignore]

from benchmarks.arms import ARMS, PLAIN
from benchmarks.plan import TUNING_SEED, Row, number
from hybrid_predict.runs.evidence import spread

RESAMPLES = 2000  # of the bootstrap

EXACT = ""
AT_LEAST = "≥"
AT_MOST = "≤"
BOTH = "≈"
"""Marks of a number that is interpolated, of bounds outside the range measured, and of a mean over
bounds from both sides."""


@dataclass(frozen=True)
class Ratio:
    """A number, or a bound of it, from ``seeds``; with a 95 % interval where it is known."""

    value: float
    bound: str = EXACT
    low: float | None = None
    high: float | None = None
    seeds: int = 0

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.bound}{self.value:.2f}{interval}"


def geometric(ratios: Iterable[Ratio]) -> Ratio:
    """Return the geometric mean of numbers with bounds; a bound counts as its value."""
    kept = list(ratios)
    bounds = {ratio.bound for ratio in kept} - {EXACT}
    mean = math.exp(statistics.fmean(math.log(ratio.value) for ratio in kept))
    return Ratio(mean, BOTH if len(bounds) > 1 else "".join(bounds))


def plain_steps_to_reach(steps: Sequence[float], losses: Sequence[float], loss: float) -> Ratio:
    r"""Return the fewest full steps with which plain training reaches a given loss.

    Every run has a schedule of its own length. Between two runs the loss is interpolated linearly
    in the logarithm of the steps. A run whose final loss is not finite, or not below that of a
    shorter run, is skipped. A loss outside the range of the plain losses gives a bound, the nearest
    number.
    """
    known: list[tuple[float, float]] = []
    for budget, value in zip(steps, losses, strict=True):
        if math.isfinite(value) and (not known or value < known[-1][1]):
            known.append((budget, value))
    if not math.isfinite(loss) or not known or loss > known[0][1]:
        return Ratio(known[0][0] if known else steps[0], AT_MOST)
    if loss < known[-1][1]:
        return Ratio(known[-1][0], AT_LEAST)
    falling = [-value for _, value in known]
    return Ratio(math.exp(np.interp(-loss, falling, [math.log(n) for n, _ in known])))


def speedup(
    steps: Sequence[float],
    plain: Sequence[Sequence[float]],
    losses: Sequence[float],
    costs: Sequence[float],
    resamples: int = RESAMPLES,
) -> Ratio:
    r"""Return plain full steps to reach an arm's loss, per full step spent, of runs paired by seed.

    Below two seeds there is no interval. Seeds are drawn with replacement, the same ones for the
    plain curve and for the arm, and means are formed before they are compared; a resample outside
    the measured lengths counts with the nearest one. With few seeds percentile intervals are too
    narrow, so the 95 % interval ends at the quantiles

    .. math:: \alpha' = \Phi\left(\pm\sqrt{n / (n - 1)} \; t_{0.975, n - 1}\right)

    (Hesterberg, "What teachers should know about the bootstrap", 2015).

    ``plain`` has a row of losses per number of ``steps``, ascending, and a column per seed; the arm
    has its ``losses``, and its full steps as ``costs``, by seed.
    """
    curve, arm, cost = (np.asarray(x, dtype=float) for x in (plain, losses, costs))

    def measure(chosen: np.ndarray) -> Ratio:
        reached = plain_steps_to_reach(
            steps, curve[:, chosen].mean(axis=1).tolist(), float(arm[chosen].mean())
        )
        return Ratio(reached.value / float(cost[chosen].mean()), reached.bound)

    n = len(arm)
    everyone = np.arange(n)
    found = measure(everyone)
    if n < 2 or not resamples:
        return replace(found, seeds=n)
    draws = np.random.default_rng(0).choice(everyone, (resamples, n))
    tail = float(norm.sf(math.sqrt(n / (n - 1)) * float(t.isf(0.025, n - 1))))
    low, high = np.quantile([measure(draw).value for draw in draws], [tail, 1.0 - tail])
    return replace(found, low=float(low), high=float(high), seeds=n)


class Place(NamedTuple):
    """Where runs that differ in their seed alone stand in a study; ``steps`` is T."""

    task: str
    setting: str
    arm: str
    steps: int


@dataclass(frozen=True)
class Figures:
    """Statistics of runs that differ in their seed alone, by seed."""

    place: Place
    rows: dict[int, Row]
    summary: Summary

    @property
    def loss(self) -> dict[str, Any]:
        """Mean, standard deviation and number of the finite losses."""
        return spread([row["loss"] for row in self.rows.values() if row["loss"] is not None])

    @property
    def first(self) -> Row:
        """One of the rows, for what all of them share."""
        return next(iter(self.rows.values()))

    @property
    def full_steps(self) -> float:
        return self.mean("full_steps")

    @property
    def length(self) -> float | None:
        """Mean length of predicted steps, in lengths of the drift; None where it is not known."""
        known = [row for row in self.rows.values() if row.get("mean_length") is not None]
        total = sum(row["predicted_steps"] for row in known)
        way = sum(row["predicted_steps"] * row["mean_length"] for row in known)
        return way / total if total else None

    @cached_property
    def speedup(self) -> Ratio | None:
        """The speedup beside all plain runs of the task and setting."""
        return self.beside(PLAIN, self.place.setting)

    def mean(self, field: str) -> float:
        """Return the mean of a field; the loss of runs that diverged is infinite."""
        return statistics.fmean(number(row[field]) for row in self.rows.values())

    def beside(self, arms: Sequence[str], setting: str, resamples: int = RESAMPLES) -> Ratio | None:
        """Return the gain beside some arms in a setting; None with fewer than two lengths."""
        curve = {
            ARMS[other.arm].full_steps(other.steps): found.rows
            for other, found in self.summary.found.items()
            if (other.task, other.setting) == (self.place.task, setting) and other.arm in arms
        }
        mine = self.rows
        seeds = sorted(seed for seed in mine if any(seed in runs for runs in curve.values()))
        known = {n: runs for n, runs in sorted(curve.items()) if runs.keys() >= set(seeds)}
        if not seeds or len(known) < 2:
            return None
        losses = [number(mine[seed]["loss"]) for seed in seeds]
        # Runs that diverged count their planned full steps.
        budget = ARMS[self.place.arm].full_steps(self.place.steps)
        least = [0 if math.isfinite(loss) else budget for loss in losses]
        costs = [max(mine[s]["full_steps"], n) for s, n in zip(seeds, least, strict=True)]
        plain = [[number(runs[seed]["loss"]) for seed in seeds] for runs in known.values()]
        return speedup(list(known), plain, losses, costs, resamples)


class Summary:
    """Statistics of the rows of a study, without trials of rates and arms of earlier commits."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.found: dict[Place, Figures] = {}
        for row in rows:
            if row["seed"] != TUNING_SEED and row["arm"] in ARMS:
                place = Place(row["task"], row["setting"], row["arm"], row["steps"])
                self.found.setdefault(place, Figures(place, {}, self)).rows[row["seed"]] = row
        self.tasks = list(dict.fromkeys(place.task for place in self.found))
        self.seeds = max((len(found.rows) for found in self.found.values()), default=0)

    def in_order(self) -> list[Figures]:
        """Return all statistics, in the order of tasks, T and arms."""
        order = list(ARMS)

        def position(place: Place) -> tuple[int, int, int]:
            return self.tasks.index(place.task), place.steps, order.index(place.arm)

        return [self.found[place] for place in sorted(self.found, key=position)]

    def figures(self, task: str, arm: str) -> Figures | None:
        """Return the statistics of an arm on a task of a single T; None if it has no runs."""
        found = (f for f in self.found.values() if (f.place.task, f.place.arm) == (task, arm))
        return next(found, None)

    def speedups(self, arm: str) -> dict[str, Ratio]:
        """Return the speedups of an arm by task, of the tasks where it has one."""
        found = {task: self.figures(task, arm) for task in self.tasks}
        return {task: f.speedup for task, f in found.items() if f and f.speedup}
