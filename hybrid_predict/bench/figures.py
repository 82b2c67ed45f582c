"""What a suite's runs amount to: per task, setting and arm, and over tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_predict.bench.arms import PLAIN
from hybrid_predict.bench.plan import SETTINGS, TUNING_SEED, as_cell, number
from hybrid_predict.evidence import EXACT, Speedup, speedup, spread

Runs = dict[int, Mapping[str, Any]]
"""Rows of one task, setting and arm, by seed."""


@dataclass(frozen=True)
class Figures:
    """What one arm did on one task in one setting.

    Args:
        loss: Mean, standard deviation and number of the final losses; diverged runs left out.
        diverged: Number of runs that diverged.
        full_steps: Mean full steps.
        cost: Mean cost in full steps; a forward-only pass counts 1/3.
        rate: Learning rate.
        hidden: What it was multiplied by for the hidden matrices.
        seconds: Mean seconds of training.
        overhead: Seconds per full step over those of ``short``, median of the ratios of each seed.
        memory: Median memory in bytes.
        speedup: Speedup at equal quality; None where the plain arms are not done.
    """

    loss: Mapping[str, Any]
    diverged: int
    full_steps: float
    cost: float
    rate: float
    hidden: float
    seconds: float
    overhead: float | None
    memory: float
    speedup: Speedup | None


@dataclass(frozen=True)
class Overall:
    """Geometric mean of an arm's speedup over tasks.

    Args:
        value: The mean; tasks beyond what was tried count with the end of what was tried.
        bound: Whether that makes it a bound from below, from above, or neither.
        worst: Name of the task with the smallest speedup.
        worst_value: The speedup there.
        tasks: Number of tasks.
    """

    value: float
    bound: str
    worst: str
    worst_value: float
    tasks: int


class Summary:
    """Figures of a results file.

    Args:
        results: What the file holds.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.tasks: list[str] = list(results["tasks"])
        arms: Mapping[str, list[str]] = results["arms"]
        self.settings: dict[str, list[str]] = {s: arms[s] for s in SETTINGS if s in arms}
        self._runs: dict[tuple[str, str, str], Runs] = {}
        self._speedups: dict[tuple[str, str, str], Speedup | None] = {}
        for row in results["runs"]:
            if row["seed"] == TUNING_SEED:
                continue
            key = row["task"], row["setting"], row["arm"]
            self._runs.setdefault(key, {})[row["seed"]] = row

    def runs(self, task: str, setting: str, arm: str) -> Runs:
        """The rows by seed; empty if there are none."""
        return self._runs.get((task, setting, arm), {})

    def plain(self, task: str, setting: str, seeds: Iterable[int]) -> list[list[float]]:
        """Losses of the plain arms over these seeds, one row per arm."""
        return [
            [number(self.runs(task, setting, arm)[seed]["loss"]) for seed in seeds] for arm in PLAIN
        ]

    def seeds(self, task: str, setting: str, arm: str) -> list[int]:
        """Seeds that have the arm and all plain arms."""
        sets = [set(self.runs(task, setting, name)) for name in (*PLAIN, arm)]
        return sorted(set.intersection(*sets))

    def budgets(self, task: str, setting: str) -> list[int]:
        """Full steps that the plain arms were given."""
        firsts = [next(iter(self.runs(task, setting, arm).values())) for arm in PLAIN]
        return [as_cell(row).budget for row in firsts]

    def figures(self, task: str, setting: str, arm: str) -> Figures | None:
        """What the arm did there; None if it has no runs."""
        by_seed = self.runs(task, setting, arm)
        if not by_seed:
            return None
        rows = list(by_seed.values())
        finite = [row["loss"] for row in rows if row["loss"] is not None]
        return Figures(
            loss=spread(finite),
            diverged=len(rows) - len(finite),
            full_steps=statistics.fmean(row["full_steps"] for row in rows),
            cost=statistics.fmean(row["cost"] for row in rows),
            rate=rows[0]["rate"],
            hidden=rows[0]["hidden"],
            seconds=statistics.fmean(row["seconds"] for row in rows),
            overhead=self._overhead(task, setting, by_seed),
            memory=statistics.median(row["memory"] for row in rows),
            speedup=self._speedup(task, setting, arm),
        )

    def overall(self, setting: str, arm: str) -> Overall | None:
        """The arm over all tasks; None if it lacks one."""
        found = {task: self._speedup(task, setting, arm) for task in self.tasks}
        known = {task: value for task, value in found.items() if value is not None}
        if not known or len(known) < len(found):
            return None
        mean = math.exp(statistics.fmean(math.log(s.value) for s in known.values()))
        bounds = {s.bound for s in known.values()} - {EXACT}
        worst = min(known, key=lambda task: known[task].value)
        bound = bounds.pop() if len(bounds) == 1 else "≈" if bounds else EXACT
        return Overall(mean, bound, worst, known[worst].value, len(known))

    def _overhead(self, task: str, setting: str, by_seed: Runs) -> float | None:
        short = self.runs(task, setting, "short")
        ratios = [
            row["seconds"] / row["full_steps"] * short[seed]["full_steps"] / short[seed]["seconds"]
            for seed, row in by_seed.items()
            if seed in short
        ]
        return statistics.median(ratios) if ratios else None

    def _speedup(self, task: str, setting: str, arm: str) -> Speedup | None:
        key = task, setting, arm
        if key not in self._speedups:  # the bootstrap is worth keeping
            self._speedups[key] = self._measured(*key)
        return self._speedups[key]

    def _measured(self, task: str, setting: str, arm: str) -> Speedup | None:
        seeds = self.seeds(task, setting, arm)
        if not seeds:
            return None
        rows = [self.runs(task, setting, arm)[seed] for seed in seeds]
        return speedup(
            self.budgets(task, setting),
            self.plain(task, setting, seeds),
            [number(row["loss"]) for row in rows],
            # A run that diverged early has not saved the rest of its steps.
            [
                row["cost"] if row["loss"] is not None else max(row["cost"], as_cell(row).budget)
                for row in rows
            ],
        )
