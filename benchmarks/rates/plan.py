"""Tasks at shares of their best learning rates, and at rates that know nothing of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product

from benchmarks import load
from benchmarks.arms import ARMS
from benchmarks.digests import recipe_digest
from benchmarks.plan import Cell, Row, Selection
from benchmarks.run import CellPlan
from benchmarks.tasks import FRESH, TASKS, Task

RATES, STEADY, GUESSED = "rates", "constant", "untuned"
"""Settings: shares of the best rate with the task's schedule, constant shares, and guesses."""

SHARES = (1 / 100, 1 / 30, 1 / 10, 1 / 3, 1.0, 3.0)
"""Learning rates, as shares of the rate that is best for plain training."""

SHORT = 0.25

LENGTHS = {
    "plain": (0.125, 0.25, 0.5, 1, 2, 4),
    "corrected": (0.125, 0.25, 0.5, 1),
    "auto": (SHORT, 1),
}
"""Full steps of each arm over T; ``auto`` takes fewer, as it decides."""

GUESSES = (3e-4, 1e-3)

UNTUNED: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(("plain", "corrected", "auto"), GUESSES),
    **dict.fromkeys(("prodigy", "d-adapt", "mechanic", "dowg"), (1.0,)),
    "schedule-free": (0.0025,),
}
"""Arms whose rates are not tuned to the task: common guesses, or the default of an optimizer."""

STEADY_TASKS, STEADY_SHARES = ("cnn", "mlp", "pinn", "autoencoder"), (1 / 10, 1.0)
"""Tasks and shares of the best rate that are also trained at constant rates."""

DEVELOPMENT = ("gpt-0.2m", "cnn", "inr", "mlp", "lora", "pinn", "autoencoder")
"""Tasks on which the rule was chosen; it was not run on the fresh ones before."""

SEEDS = {**dict.fromkeys(DEVELOPMENT, 3), **{task.name: 1 for task in FRESH}}
"""Paired seeds of each task."""


@lru_cache(maxsize=1)
def best_rates() -> dict[str, float]:
    """Return the best rate of plain training by task, from the committed results of the suites."""
    return {
        row["task"]: row["rate"]
        for suite in ("core", "wide", "fresh")
        for row in load(f"bench-{suite}.json")["runs"]
        if (row["setting"], row["arm"]) == ("tuned", "plain")
    }


def nearest(share: float) -> float:
    """Return the share of the study that is nearest to a number."""
    return min(SHARES, key=lambda known: abs(math.log(known / share)))


def cell(name: str, arm: str, seed: int, rate: float, length: float, setting: str = RATES) -> Cell:
    """Return one run; ``length`` is that of its full steps over T."""
    task, chosen = TASKS[name], ARMS[arm]
    steps = round(task.steps * length / chosen.share)
    digest = recipe_digest(replace(task, steps=steps), chosen)
    rounded = float(f"{rate:.3g}")
    return Cell(name, setting, arm, seed, rounded, 1.0, setting != STEADY, steps, digest)


class RatesPlan(CellPlan):
    """All runs, seed by seed."""

    def __init__(self, chosen: Selection) -> None:
        cells = (
            cell(name, arm, seed, rate, length, setting)
            for name, seeds in SEEDS.items()
            for seed in range(chosen.seeds or seeds)
            for setting, arm, rate, length in _runs(name)
        )
        self._cells = sorted((c for c in cells if chosen.has(c)), key=lambda c: c.seed)

    def keys(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        """Yield all runs."""
        yield from self._cells

    def task(self, cell: Cell) -> Task:
        """Return the task of a cell."""
        return TASKS[cell.task]


def _runs(name: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield setting, arm, rate and length of a task's runs."""
    best = best_rates()[name]
    places = [(RATES, share) for share in SHARES]
    if name in STEADY_TASKS:
        places += [(STEADY, share) for share in STEADY_SHARES]
    for (setting, share), (arm, lengths) in product(places, LENGTHS.items()):
        for length in lengths:
            yield setting, arm, best * share, length
    for arm, rates in UNTUNED.items():
        for rate in rates:
            yield GUESSED, arm, rate, 1
