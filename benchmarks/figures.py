"""Statistics of a suite's runs: per task, setting and arm, and over tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import PLAIN
from benchmarks.plan import TUNING_SEED, Row, as_cell, number
from benchmarks.speedups import Speedup, speedup
from benchmarks.suites import SETTINGS
from hybrid_predict.runs.evidence import EXACT, spread

Runs = dict[int, Mapping[str, Any]]
"""Rows of one task, setting and arm, by seed."""


@dataclass(frozen=True)
class Figures:
    """Statistics of one arm on one task in one setting.

    ``loss`` leaves diverged runs out; ``length`` of predicted steps is in lengths of the drift.
    """

    loss: Mapping[str, Any]
    diverged: int
    full_steps: float
    predicted_steps: float
    length: float | None
    rate: float
    hidden: float
    seconds: float
    memory: float
    speedup: Speedup | None


@dataclass(frozen=True)
class Overall:
    """Geometric mean of an arm's speedup over tasks; a bound counts as its value."""

    value: float
    bound: str
    worst: str
    worst_value: float
    tasks: int


class Summary:
    """Statistics of all runs in a results file."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.tasks: list[str] = list(results["tasks"])
        self.seeds: int = results["seeds"]
        arms: Mapping[str, list[str]] = results["arms"]
        self.settings: dict[str, list[str]] = {
            setting: list(arms[setting]) for setting in SETTINGS if setting in arms
        }
        self._runs: dict[tuple[str, str, str], Runs] = {}
        self._speedups: dict[tuple[str, str, str], Speedup | None] = {}
        for row in results["runs"]:
            if row["seed"] == TUNING_SEED:
                continue
            key = row["task"], row["setting"], row["arm"]
            self._runs.setdefault(key, {})[row["seed"]] = row

    def runs(self, task: str, setting: str, arm: str) -> Runs:
        """Return the rows of an arm by seed; empty if there are none."""
        return self._runs.get((task, setting, arm), {})

    def curve(self, setting: str) -> list[str]:
        """Return the plain arms of the setting; earlier results have no run of 4T."""
        return [arm for arm in PLAIN if arm in self.settings[setting]]

    def plain(self, task: str, setting: str, seeds: Iterable[int]) -> list[list[float]]:
        """Return the losses of the plain arms over some seeds, one row per arm."""
        return [
            [number(self.runs(task, setting, arm)[seed]["loss"]) for seed in seeds]
            for arm in self.curve(setting)
        ]

    def paired(self, task: str, setting: str, arm: str) -> list[int]:
        """Return the seeds with which the arm and all plain arms are finished."""
        sets = [set(self.runs(task, setting, name)) for name in (*self.curve(setting), arm)]
        return sorted(set.intersection(*sets))

    def budgets(self, task: str, setting: str) -> list[int]:
        """Return the planned full steps of the plain arms."""
        arms = self.curve(setting)
        firsts = [next(iter(self.runs(task, setting, arm).values())) for arm in arms]
        return [as_cell(row).budget for row in firsts]

    def figures(self, task: str, setting: str, arm: str) -> Figures | None:
        """Return the statistics of an arm; None if it has no runs."""
        by_seed = self.runs(task, setting, arm)
        if not by_seed:
            return None
        rows = list(by_seed.values())
        finite = [row["loss"] for row in rows if row["loss"] is not None]
        return Figures(
            loss=spread(finite),
            diverged=len(rows) - len(finite),
            full_steps=statistics.fmean(row["full_steps"] for row in rows),
            predicted_steps=statistics.fmean(row["predicted_steps"] for row in rows),
            length=_mean_length(rows),
            rate=rows[0]["rate"],
            hidden=rows[0]["hidden"],
            seconds=statistics.median(row["seconds"] for row in rows),
            memory=statistics.median(row["memory"] for row in rows),
            speedup=self._speedup(task, setting, arm),
        )

    def overall(self, setting: str, arm: str) -> Overall | None:
        """Return the mean speedup of an arm over all tasks; None if it lacks one."""
        speedups = {task: self._speedup(task, setting, arm) for task in self.tasks}
        known = {task: value for task, value in speedups.items() if value is not None}
        if not known or len(known) < len(speedups):
            return None
        mean = math.exp(statistics.fmean(math.log(s.value) for s in known.values()))
        bounds = {s.bound for s in known.values()} - {EXACT}
        worst = min(known, key=lambda task: known[task].value)
        bound = bounds.pop() if len(bounds) == 1 else "≈" if bounds else EXACT
        return Overall(mean, bound, worst, known[worst].value, len(known))

    def _speedup(self, task: str, setting: str, arm: str) -> Speedup | None:
        key = task, setting, arm
        if key not in self._speedups:  # the bootstrap takes long
            self._speedups[key] = self._measured(*key)
        return self._speedups[key]

    def _measured(self, task: str, setting: str, arm: str) -> Speedup | None:
        seeds = self.paired(task, setting, arm)
        if not seeds:
            return None
        rows = [self.runs(task, setting, arm)[seed] for seed in seeds]
        return of_runs(self.budgets(task, setting), self.plain(task, setting, seeds), rows)


def of_runs(
    budgets: Sequence[int], plain: Sequence[Sequence[float]], rows: Sequence[Mapping[str, Any]]
) -> Speedup:
    """Return the speedup of an arm's runs; those that diverged count their planned full steps."""
    losses = [number(row["loss"]) for row in rows]
    least = [0 if math.isfinite(loss) else as_cell(rows[0]).budget for loss in losses]
    costs = [max(row["full_steps"], n) for row, n in zip(rows, least, strict=True)]
    return speedup(budgets, plain, losses, costs)


def of_arm(arms: Mapping[str, Mapping[int, Row]], curve: Sequence[str], arm: str) -> Speedup | None:
    """Return the speedup of an arm, from the seeds that all plain arms of the curve have as well.

    ``arms`` has runs by arm and seed; the curve ascends in steps. None if there is no such seed.
    """
    seeds = sorted(set(arms[arm]).intersection(*(arms[name] for name in curve)))
    if not seeds or not curve:
        return None
    plain = [[number(arms[name][seed]["loss"]) for seed in seeds] for name in curve]
    budgets = [as_cell(arms[name][seeds[0]]).budget for name in curve]
    return of_runs(budgets, plain, [arms[arm][seed] for seed in seeds])


def _mean_length(rows: Sequence[Mapping[str, Any]]) -> float | None:
    pairs = [(row["predicted_steps"], row.get("mean_length")) for row in rows]
    known = [(count, length) for count, length in pairs if length is not None]
    total = sum(count for count, _ in known)
    return sum(count * length for count, length in known) / total if total else None
