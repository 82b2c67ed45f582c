"""Trains tasks at shares of their best learning rates: plain, corrected, and with ``auto``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from benchmarks import RESULTS
from benchmarks.arms import ARMS
from benchmarks.optimizers import Rates
from benchmarks.plan import Cell, Row, recipe_digest
from benchmarks.run import OnRow, make_rows, trained
from benchmarks.tasks import TASKS
from hybrid_predict.runs.rows import Rows

K = TypeVar("K")

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


def best_rates() -> dict[str, float]:
    """Return the best rate of plain training by task, from the committed results of the suites."""
    rates = {}
    for suite in ("core", "wide", "fresh"):
        for row in json.loads((RESULTS / f"bench-{suite}.json").read_text())["runs"]:
            if (row["setting"], row["arm"]) == ("tuned", "plain"):
                rates[row["task"]] = row["rate"]
    return rates


def nearest(share: float) -> float:
    """Return the share of the study that is nearest to a number."""
    return min(SHARES, key=lambda known: abs(math.log(known / share)))


def share_text(share: float) -> str:
    """Return a share of the best rate in words."""
    return f"1/{1 / share:.0f}" if share < 1 else f"{share:.0f}"


def cells(
    tasks: Iterable[str],
    shares: Sequence[float],
    seeds: int,
    arms: Iterable[str],
    setting: str = RATES,
) -> Iterator[Cell]:
    """Return all runs at shares of the best rates, seed by seed."""
    best, tasks, arms = best_rates(), list(tasks), [arm for arm in arms if arm in LENGTHS]
    for seed in range(seeds):
        for share in shares:
            for name in tasks:
                for arm in arms:
                    for length in LENGTHS[arm]:
                        yield cell(name, arm, seed, best[name] * share, length, setting)


def steady_cells(tasks: Iterable[str], seeds: int, arms: Iterable[str]) -> Iterator[Cell]:
    """Return runs at constant rates, for the tasks that have any."""
    kept = [task for task in tasks if task in STEADY_TASKS]
    return cells(kept, STEADY_SHARES, seeds, arms, STEADY)


def untuned_cells(tasks: Iterable[str], seeds: int, arms: Iterable[str]) -> Iterator[Cell]:
    """Return runs of T full steps at rates that know nothing of the task, seed by seed."""
    tasks, arms = list(tasks), [arm for arm in arms if arm in UNTUNED]
    for seed in range(seeds):
        for name in tasks:
            for arm in arms:
                for rate in UNTUNED[arm]:
                    yield cell(name, arm, seed, rate, 1, GUESSED)


def cell(name: str, arm: str, seed: int, rate: float, length: float, setting: str = RATES) -> Cell:
    """Return one run; ``length`` is that of its full steps over T."""
    task, chosen = TASKS[name], ARMS[arm]
    steps = round(task.steps * length / chosen.share)
    digest = recipe_digest(replace(task, steps=steps), chosen)
    chosen_rates = Rates(float(f"{rate:.3g}"))
    return Cell(name, setting, arm, seed, chosen_rates.base, chosen_rates.hidden,
                setting != STEADY, steps, digest)  # fmt: skip


def train_one(cell: Cell) -> Row:
    """Train a cell and return its row."""
    return trained(cell, TASKS[cell.task])


def make_missing(
    path: Path, key: Callable[[Row], K], wanted: Iterable[K], work: Callable[[K], Row],
    jobs: int, on_row: OnRow,
) -> Rows[K]:  # fmt: skip
    """Make the runs that a file lacks; return them all."""
    store, asked = Rows(path, key), list(wanted)
    make_rows(store, lambda: asked, work, jobs, on_row)
    return store
