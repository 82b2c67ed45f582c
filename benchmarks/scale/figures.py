"""What the runs of several widths and lengths amount to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.plan import TUNING, Row, number
from benchmarks.scale.sizes import PLAIN
from hybrid_predict.runs.evidence import Speedup, speedup

Runs = dict[int, Row]
"""Rows of one width, arm and T, by seed."""


@dataclass(frozen=True)
class Point:
    """What one arm did at one width and length.

    Args:
        width: Width of the model.
        steps: T.
        arm: Name of the arm.
        parameters: Of the model.
        full_steps: Mean full steps.
        predicted_steps: Mean predicted steps that stand.
        tokens: Bytes that its full steps read, per parameter.
        loss: Mean loss over the seeds; not finite if one diverged.
        rate: Learning rate.
        hidden: What it was multiplied by for the hidden matrices.
        seeds: Number of its runs.
        speedup: Speedup at equal quality; None for plain runs and where the plain runs of T / 1.5,
            T and 2 T are not done.
    """

    width: int
    steps: int
    arm: str
    parameters: int
    full_steps: float
    predicted_steps: float
    tokens: float
    loss: float
    rate: float
    hidden: float
    seeds: int
    speedup: Speedup | None


def points(rows: Iterable[Row]) -> list[Point]:
    """Every arm at every width and length, ascending; trials of rates left out.

    Args:
        rows: Rows of the results file.
    """
    runs: dict[tuple[int, int, str], Runs] = {}
    for row in rows:
        if row["setting"] != TUNING:
            key = row["width"], row["steps"], row["arm"]
            runs.setdefault(key, {})[row["seed"]] = row
    order = [PLAIN, *(name for name in ARMS if name != PLAIN)]
    keys = sorted(runs, key=lambda key: (key[0], key[1], order.index(key[2])))
    return [_point(runs, *key) for key in keys]


def _point(runs: Mapping[tuple[int, int, str], Runs], width: int, steps: int, arm: str) -> Point:
    found = list(runs[width, steps, arm].values())
    full_steps = statistics.fmean(row["full_steps"] for row in found)
    first: Mapping[str, Any] = found[0]
    return Point(
        width=width,
        steps=steps,
        arm=arm,
        parameters=first["parameters"],
        full_steps=full_steps,
        predicted_steps=statistics.fmean(row["predicted_steps"] for row in found),
        tokens=full_steps * first["tokens"] / first["parameters"],
        loss=statistics.fmean(number(row["loss"]) for row in found),
        rate=first["rate"],
        hidden=first["hidden"],
        seeds=len(found),
        speedup=None if arm == PLAIN else _speedup(runs, width, steps, arm),
    )


def _speedup(
    runs: Mapping[tuple[int, int, str], Runs], width: int, steps: int, arm: str
) -> Speedup | None:
    """Read off all plain runs of the width that have the arm's seeds."""
    plain = {t: by_seed for (w, t, name), by_seed in sorted(runs.items())
             if (w, name) == (width, PLAIN)}  # fmt: skip
    budget = ARMS[arm].full_steps(steps)
    needed = [plain.get(length, {}) for length in (budget, steps, 2 * steps)]
    own = runs[width, steps, arm]
    seeds = sorted(set(own).intersection(*needed))
    if not seeds:
        return None
    curve = {t: by_seed for t, by_seed in plain.items() if by_seed.keys() >= set(seeds)}
    losses = [number(own[seed]["loss"]) for seed in seeds]
    # A run that diverged early has not saved the rest of its steps.
    least = [0 if math.isfinite(loss) else budget for loss in losses]
    costs = [max(own[seed]["full_steps"], n) for seed, n in zip(seeds, least, strict=True)]
    known = [[number(by_seed[seed]["loss"]) for seed in seeds] for by_seed in curve.values()]
    return speedup(list(curve), known, losses, costs)
