"""What runs gain: full steps of other ways to train for the same loss, per full step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.arms import ARMS
from benchmarks.plan import Row, number
from benchmarks.rates.plan import GUESSED, RATES, UNTUNED, best_rates, nearest
from benchmarks.tasks import TASKS
from benchmarks.views import NONE
from hybrid_predict.runs.evidence import EXACT, plain_steps_to_reach

Losses = dict[int, list[float]]
"""Losses over seeds, by full steps."""

COMPARED = ("plain", "corrected", "auto")
BOTH = "≈"
"""Marks a mean over bounds from both sides."""


class Ratio(NamedTuple):
    """Full steps that a curve needs for the same loss, per full step, and its bound."""

    value: float
    bound: str = EXACT


@dataclass(frozen=True)
class Point:
    """What an arm did on one task at one learning rate, a ``share`` of the best one.

    ``gain`` is beside plain training at the same rate, ``beside_tuned`` at the best rate.
    """

    task: str
    share: float
    arm: str
    full_steps: float
    predicted_steps: float
    loss: float
    gain: Ratio
    beside_corrected: Ratio
    beside_tuned: Ratio

    def predicted_per_full(self) -> float:
        """Return predicted steps per full step."""
        return self.predicted_steps / self.full_steps


def points(rows: Iterable[Row], length: float = 1.0, setting: str = RATES) -> list[Point]:
    """Return every arm on every task at every rate; a gain without its curve is nan."""
    groups = at_shares(rows, setting)
    found = []
    for (task, share, arm), group in sorted(groups.items()):
        if arm in COMPARED and (chosen := _of_length(group, length)):
            curves = ((task, share, "plain"), (task, share, "corrected"), (task, 1.0, "plain"))
            loss, full = _means(chosen)
            predicted = statistics.fmean(row["predicted_steps"] for row in chosen)
            ratios = (_against(groups.get(curve, []), length, loss, full) for curve in curves)
            found.append(Point(task, share, arm, full, predicted, loss, *ratios))
    return found


def at_shares(rows: Iterable[Row], setting: str = RATES) -> dict[tuple[str, float, str], list[Row]]:
    """Return the runs at shares of the best rate by task, share and arm."""
    best = best_rates()
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        if row["setting"] == setting:
            share = nearest(row["rate"] / best[row["task"]])
            groups.setdefault((row["task"], share, row["arm"]), []).append(row)
    return groups


def _of_length(rows: Iterable[Row], length: float) -> list[Row]:
    return [
        row
        for row in rows
        if row["steps"] == round(TASKS[row["task"]].steps * length / ARMS[row["arm"]].share)
    ]


def _against(rows: Sequence[Row], length: float, loss: float, full_steps: float) -> Ratio:
    """Return a gain beside a curve over that of the curve's own run of this length.

    The latter is 1, unless a shorter run of the curve ends lower, as at rates that are too large.
    """
    found, own = beside(rows, loss, full_steps), _of_length(rows, length)
    one = beside(rows, *_means(own)).value if own else 1.0
    return Ratio(found.value / one, found.bound)


def beside(rows: Iterable[Row], loss: float, full_steps: float) -> Ratio:
    """Return what a run gains beside the runs of a curve; nan with fewer than two lengths."""
    losses: Losses = {}
    for row in rows:
        losses.setdefault(row["full_steps"], []).append(number(row["loss"]))
    if len(losses) < 2:
        return Ratio(math.nan)
    curve = {steps: statistics.fmean(each) for steps, each in sorted(losses.items())}
    reached = plain_steps_to_reach(list(curve), list(curve.values()), loss)
    return Ratio(reached.steps / full_steps, reached.bound)


def untuned_ratios(rows: Iterable[Row]) -> dict[tuple[str, float], dict[str, Ratio]]:
    """Return gains beside plain training at its best rate, by arm and untuned rate, and by task."""
    kept = list(rows)
    curves = at_shares(kept)
    runs: dict[tuple[str, float], dict[str, list[Row]]] = {}
    for row in kept:
        if row["setting"] == GUESSED:
            mine = runs.setdefault((row["arm"], row["rate"]), {})
            mine.setdefault(row["task"], []).append(row)
    known = {(arm, rate) for arm, rates in UNTUNED.items() for rate in rates}
    return {
        key: {
            task: beside(curves.get((task, 1.0, "plain"), []), *_means(group))
            for task, group in tasks.items()
        }
        for key, tasks in runs.items()
        if key in known
    }


def _means(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the mean loss and the mean number of full steps."""
    loss = statistics.fmean(number(row["loss"]) for row in rows)
    return loss, statistics.fmean(row["full_steps"] for row in rows)


def mean(ratios: Iterable[Ratio]) -> str:
    """Return the geometric mean with the mark of its bound, if all of the numbers are known."""
    kept = list(ratios)
    value, bounds = mean_value(kept), {ratio.bound for ratio in kept} - {EXACT}
    mark = BOTH if len(bounds) > 1 else "".join(bounds)
    return f"{mark}{value:.2f}" if math.isfinite(value) else NONE


def mean_value(ratios: Iterable[Ratio]) -> float:
    """Return the geometric mean, or nan."""
    return math.exp(statistics.fmean(math.log(ratio.value) for ratio in ratios))


def worst(ratios: Mapping[str, Ratio]) -> str:
    """Return the smallest number and its task."""
    task = min(ratios, key=lambda name: ratios[name].value)
    known = all(math.isfinite(ratio.value) for ratio in ratios.values())
    return f"{mean([ratios[task]])} ({task})" if known else NONE
