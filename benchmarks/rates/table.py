"""What runs at untuned learning rates gain, as Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from benchmarks.arms import ARMS
from benchmarks.plan import Row, number
from benchmarks.rates.hints import hints
from benchmarks.rates.study import SHARES, SHORT, best_rates, nearest, share_text
from benchmarks.table import NONE, markdown
from benchmarks.tasks import TASKS
from hybrid_predict.runs.evidence import AT_LEAST, AT_MOST, plain_steps_to_reach

Losses = dict[int, list[float]]
"""Losses over seeds, by full steps."""

COMPARED = ("corrected", "auto")
"""The arms that are compared with plain training."""


@dataclass(frozen=True)
class Point:
    """What an arm did on one task at one learning rate.

    Args:
        task: Name of the task.
        share: Learning rate over the best one.
        arm: Name of the arm.
        full_steps: Mean full steps.
        predicted_steps: Mean predicted steps that stand.
        loss: Mean final loss.
        gain: Full steps of plain training at the same rate for the same loss, per full step.
        bound: Whether ``gain`` is only a bound.
        beside_corrected: The same for corrected updates in place of plain training.
        beside_tuned: The same for plain training at the best rate.
        seeds: Number of seeds.
    """

    task: str
    share: float
    arm: str
    full_steps: float
    predicted_steps: float
    loss: float
    gain: float
    bound: str
    beside_corrected: float
    beside_tuned: float
    seeds: int


def points(rows: Iterable[Row], length: float = 1.0) -> list[Point]:
    """Return every arm on every task at every rate; a gain without its curve is nan.

    Args:
        rows: All runs of the study.
        length: Length of the arms' runs over T.
    """
    best = best_rates()
    groups: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        share = nearest(row["rate"] / best[row["task"]])
        groups.setdefault((row["task"], share, row["arm"]), []).append(row)
    found = []
    for (task, share, arm), group in sorted(groups.items()):
        if arm not in COMPARED:
            continue
        steps = round(TASKS[task].steps * length / ARMS[arm].share)
        chosen = [row for row in group if row["steps"] == steps]
        if not chosen:
            continue
        full = statistics.fmean(row["full_steps"] for row in chosen)
        loss = statistics.fmean(number(row["loss"]) for row in chosen)
        beside = [
            _steps(_losses(groups.get(key, [])), loss)
            for key in ((task, share, "plain"), (task, share, "corrected"), (task, 1.0, "plain"))
        ]
        predicted = statistics.fmean(row["predicted_steps"] for row in chosen)
        gains = [steps / full for steps, _ in beside]
        if not predicted:  # it is the corrected run; at rates that are too large, short ones win
            gains[1] = 1.0
        found.append(Point(task, share, arm, full, predicted, loss, gains[0], beside[0][1],
                           gains[1], gains[2], len(chosen)))  # fmt: skip
    return found


def _losses(rows: Iterable[Row]) -> Losses:
    losses: Losses = {}
    for row in rows:
        losses.setdefault(row["full_steps"], []).append(number(row["loss"]))
    return dict(sorted(losses.items()))


def _steps(curve: Losses, loss: float) -> tuple[float, str]:
    if len(curve) < 2:
        return math.nan, ""
    reached = plain_steps_to_reach(list(curve), [statistics.fmean(x) for x in curve.values()], loss)
    return reached.steps, reached.bound


def overall(rows: Iterable[Row]) -> str:
    """Return geometric means over tasks, by learning rate."""
    lines = []
    everything = points(rows)
    for share in SHARES:
        for arm in COMPARED:
            mine = [p for p in everything if (p.share, p.arm) == (share, arm)]
            if mine:
                worst, known = min(mine, key=lambda p: p.gain), all_known(p.gain for p in mine)
                lines.append([
                    share_text(share), arm, f"{len(mine)}", mean(p.gain for p in mine),
                    f"{worst.gain:.2f} ({worst.task})" if known else NONE,
                    mean(p.beside_corrected for p in mine) if arm == "auto" else NONE,
                    mean(p.beside_tuned for p in mine),
                    f"{statistics.fmean(p.predicted_steps / p.full_steps for p in mine):.2f}",
                ])  # fmt: skip
    titles = ["rate / best rate", "arm", "tasks", "gain", "worst task", "beside corrected",
              "beside plain at its best rate", "predicted steps per full step"]  # fmt: skip
    return markdown(titles, lines)


def each(rows: Iterable[Row]) -> str:
    """Return every task at every rate with ``auto``."""
    lines = [
        [
            f"`{p.task}`", share_text(p.share), f"{p.full_steps:.0f}", f"{p.predicted_steps:.0f}",
            f"{p.loss:.4f}", p.bound + mean([p.gain]), mean([p.beside_corrected]),
        ]
        for p in points(rows) if p.arm == "auto"
    ]  # fmt: skip
    titles = ["task", "rate / best rate", "full steps", "predicted steps", "loss", "gain",
              "beside corrected"]  # fmt: skip
    return markdown(titles, lines)


def short(rows: Iterable[Row]) -> str:
    """Return geometric means over tasks of runs of T / 4 steps, by learning rate."""
    lines, everything = [], points(rows, SHORT)
    for share in SHARES:
        mine = [p for p in everything if (p.share, p.arm) == (share, "auto")]
        if mine:
            worst = min(mine, key=lambda p: p.beside_corrected)
            lines.append([
                share_text(share), f"{len(mine)}",
                f"{statistics.fmean(p.full_steps for p in mine):.0f}",
                f"{statistics.fmean(p.predicted_steps for p in mine):.0f}",
                mean(p.beside_corrected for p in mine),
                f"{worst.beside_corrected:.2f} ({worst.task})",
            ])  # fmt: skip
    titles = ["rate / best rate", "tasks", "full steps", "predicted steps", "beside corrected",
              "worst task"]  # fmt: skip
    return markdown(titles, lines)


def all_known(values: Iterable[float]) -> bool:
    """Return whether all numbers are finite."""
    return all(map(math.isfinite, values))


def mean(values: Iterable[float]) -> str:
    """Return the geometric mean, if all of the numbers are known."""
    logarithms = statistics.fmean(map(math.log, values))
    return f"{math.exp(logarithms):.2f}" if math.isfinite(logarithms) else NONE


def source(rows: Iterable[Row]) -> str:
    """Return how many runs the tables come from."""
    kept = list(rows)
    seeds = sorted({row["seed"] for row in kept})
    return (
        f"{len(kept)} runs, {len(seeds)} seed{'s' * (len(seeds) != 1)}; {AT_LEAST} and {AT_MOST} "
        "mark losses outside of the range of the plain runs."
    )


def blocks(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the pages, by name."""
    kept = list(rows)
    return {
        "rates source": partial(source, kept),
        "rates overall": partial(overall, kept),
        "rates each": partial(each, kept),
        "rates short": partial(short, kept),
        "rates hints": partial(hints, kept),
    }
