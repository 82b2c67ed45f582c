"""The suites: tasks and arms at rates that runs over a grid decide, and the cost of full steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from benchmarks.arms import ARCHIVED, ARMS, PLAIN, UNTUNED
from benchmarks.digests import recipe_digest
from benchmarks.measure import without_advice
from benchmarks.memory import set_imports_aside
from benchmarks.optimizers import Rates
from benchmarks.plan import TUNING, TUNING_SEED, Cell, Row, Selection, best
from benchmarks.run import CellPlan
from benchmarks.step_cost import measure
from benchmarks.tasks import FRESH, TASKS, Task
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.runs.runtime import environment

SCHEMA = 2


@dataclass(frozen=True)
class Setting:
    """A way to choose the learning rate for all arms: ``tuned`` ones take the best of a grid."""

    title: str
    tuned: bool


SETTINGS: dict[str, Setting] = {
    "default-decay": Setting("default rate, decay", False),
    "tuned": Setting("tuned rate, decay", True),
}
"""Settings by name."""


@dataclass(frozen=True)
class Suite:
    """A named selection of cells; ``arms`` are by setting, and the plain arms are always added.

    ``measured`` tasks have their full steps timed; none named are all.
    """

    tasks: tuple[str, ...]
    arms: Mapping[str, tuple[str, ...]]
    seeds: int
    tiny: bool = False
    measured: tuple[str, ...] = ()


_CONTROLLED = ("corrected", "predict-0", "hybrid", "predicted-only", "corrected-any-cost")
_WIDE = (*_CONTROLLED, "predict-.5")
_HERE = tuple(name for name in ARMS if name not in ARCHIVED)
_ALL = tuple(name for name in _HERE if name not in (*PLAIN, *UNTUNED))
_PEERS = ("muon", "normuon", "soap", "soap-muon")

SUITES: dict[str, Suite] = {
    "core": Suite(("gpt-0.2m", "cnn", "inr"), {"tuned": _ALL}, 5),
    "wide": Suite(("mlp", "lora", "pinn", "autoencoder"), {"tuned": (*_WIDE, *_PEERS)}, 5),
    "fresh": Suite(tuple(task.name for task in FRESH), {"tuned": (*_CONTROLLED, "muon")}, 5),
    "smoke": Suite(tuple(TASKS), {"default-decay": _HERE}, 1, tiny=True),
    "gpu": Suite(
        ("gpt-30m",),
        {"default-decay": ("corrected", "hybrid", "hidden-x2", "muon")},
        1,
        measured=("gpt-30m", "gpt-124m"),
    ),
}


class SuitePlan(CellPlan):
    """The cells of a suite."""

    def __init__(self, suite: Suite) -> None:
        _check(suite)
        self.suite = suite
        self.tasks: dict[str, Task] = {name: self._shortened(name) for name in suite.tasks}
        self._digests: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        """Return the number of cells that can be run, with those of grids."""
        tuned = any(SETTINGS[setting].tuned for setting in self.suite.arms)
        rates = sum(len(task.recipe.rates) for task in self.tasks.values())
        count = rates * len(PLAIN) if tuned else 0
        for setting in self.suite.arms:
            for arm in self.arms(setting):
                tried = len(ARMS[arm].factors)
                runs = self.suite.seeds + (tried if tried > 1 else 0)
                count += len(self.tasks) * runs
        return count

    def task(self, cell: Cell) -> Task:
        """Return the task of a cell."""
        return self.tasks[cell.task]

    def arms(self, setting: str) -> tuple[str, ...]:
        """Return the names of the arms of a setting."""
        return (*PLAIN, *(name for name in self.suite.arms[setting] if name not in PLAIN))

    def keys(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        """Yield grids of plain arms, grids of others, and what is compared, seed by seed."""
        places = list(product(self.tasks, self.suite.arms))
        for task, setting in places:
            for arm in PLAIN:
                yield from self._grid(task, setting, arm)
        for task, setting in places:
            for arm in self.arms(setting):
                if len(ARMS[arm].factors) > 1:
                    yield from self._tried(task, setting, arm, done)
        compared = [
            (task, setting, arm, rates)
            for task, setting in places
            for arm in self.arms(setting)
            if (rates := self.rates(task, setting, arm, done)) is not None
        ]
        for seed in range(self.suite.seeds):
            for task, setting, arm, rates in compared:
                yield self.cell(task, setting, arm, seed, rates)

    def chosen(self, done: Mapping[Cell, Row]) -> dict[Cell, Row]:
        """Return the finished runs of this plan; where all arms are compared, archived ones too."""
        settings = [name for name, arms in self.suite.arms.items() if set(arms) >= set(_ALL)]
        kept = {
            cell: row
            for cell, row in done.items()
            if cell.arm in ARCHIVED
            and cell.setting in settings
            and cell.task in self.tasks
            and cell.steps == self.tasks[cell.task].steps
        }
        return {**super().chosen(done), **kept}

    def cell(self, task: str, setting: str, arm: str, seed: int, rates: Rates) -> Cell:
        """Return a cell."""
        steps = self.tasks[task].steps
        if (task, arm) not in self._digests:
            self._digests[task, arm] = recipe_digest(self.tasks[task], ARMS[arm])
        digest = self._digests[task, arm]
        return Cell(task, setting, arm, seed, rates.base, rates.hidden, True, steps, digest)

    def rates(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> Rates | None:
        """Return the rates of an arm; None until the runs that decide them are finished."""
        chosen = ARMS[arm]
        if len(chosen.factors) > 1:
            tried = self._tried(task, setting, arm, done)
            return best(tried, done) if tried else None
        rates = self._base_rates(task, setting, arm, done)
        return rates and rates.times(chosen.tunes, chosen.factors[0])

    def _grid(self, task: str, setting: str, arm: str) -> list[Cell]:
        """Return the cells of a plain arm over the grid; empty for a setting without a grid."""
        rates = self.tasks[task].recipe.rates if SETTINGS[setting].tuned else ()
        return [self.cell(task, TUNING, arm, TUNING_SEED, Rates(rate)) for rate in rates]

    def _tried(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> list[Cell]:
        """Return the cells of an arm's own grid around the setting's rates, once they are known."""
        rates, chosen = self._base_rates(task, setting, arm, done), ARMS[arm]
        if rates is None:
            return []
        multiples = [rates.times(chosen.tunes, factor) for factor in chosen.factors]
        return [self.cell(task, setting, arm, TUNING_SEED, r) for r in multiples]

    def _base_rates(
        self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]
    ) -> Rates | None:
        """Return the rates that are best for plain training, or None if they are not known yet.

        An arm with the plug-in takes those of plain training for T full steps; an arm without it
        those of plain training for as many full steps as its own.
        """
        tuned = arm if arm in PLAIN else "short" if ARMS[arm].plugin is None else "plain"
        grid = self._grid(task, setting, tuned)
        return best(grid, done) if grid else Rates(self.tasks[task].recipe.learning_rate)

    def _shortened(self, name: str) -> Task:
        return TASKS[name].tiny() if self.suite.tiny else TASKS[name]

    def check_device(self) -> None:
        """Check that there is a CUDA device if a task needs one."""
        needy = [n for n, task in self.tasks.items() if task.needs_cuda and not self.suite.tiny]
        if needy and not torch.cuda.is_available():
            raise UnsupportedSetupError(
                "tasks", "a CUDA device", needy[0], "Choose other tasks with --tasks."
            )

    def measured_steps(self) -> dict[str, Any]:
        """Measure what the plug-in costs each task on one thread; see `step_cost.measure`."""
        short = {"blocks": 2, "length": 2} if self.suite.tiny else {}
        names = self.suite.measured or self.suite.tasks
        set_imports_aside()
        torch.set_num_threads(1)
        with without_advice():
            return {name: measure(self._shortened(name), **short) for name in names}


def _check(suite: Suite) -> None:
    named: list[tuple[str, Collection[str], Collection[str]]] = [
        ("tasks", suite.tasks, TASKS),
        ("settings", suite.arms, SETTINGS),
        *(("arms", arms, ARMS) for arms in suite.arms.values()),
    ]
    for argument, names, known in named:
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(argument, f"names out of {', '.join(known)}", unknown[0])
        if len(set(names)) < len(names):
            raise ConfigError(argument, "every name once", list(names))
    if suite.seeds < 1:
        raise ConfigError("seeds", "an integer, at least 1", suite.seeds)


def select(suite: Suite, chosen: Selection) -> Suite:
    """Return a suite with other tasks, settings, arms or seeds.

    A setting that the suite lacks gets all arms.
    """
    arms = {name: suite.arms.get(name, _ALL) for name in chosen.settings or suite.arms}
    return replace(
        suite,
        tasks=chosen.tasks or suite.tasks,
        arms=arms if chosen.arms is None else dict.fromkeys(arms, chosen.arms),
        seeds=suite.seeds if chosen.seeds is None else chosen.seeds,
        measured=() if chosen.tasks is not None else suite.measured,
    )


def compiled(
    name: str, plan: SuitePlan, done: Mapping[Cell, Row], before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the content of a results file: the runs of the plan, as plain data.

    The cost of full steps is measured once all runs are finished; till then it is that of the
    content before.
    """
    done = plan.chosen(done)
    archived = [cell for cell in done if cell.arm in ARCHIVED]
    planned = len(plan) + len(archived)
    complete = len(done) == planned
    steps = plan.measured_steps() if complete else before["steps"] if before else {}
    arms = {
        setting: [
            *plan.arms(setting),
            *dict.fromkeys(cell.arm for cell in archived if cell.setting == setting),
        ]
        for setting in plan.suite.arms
    }
    return {
        "schema": SCHEMA,
        "suite": name,
        "seeds": plan.suite.seeds,
        "arms": arms,
        "cells": {"planned": planned, "done": len(done)},
        "environment": environment(),
        "code": _codes(done.values()),
        "tasks": {name: task.to_dict() for name, task in plan.tasks.items()},
        "steps": steps,
        "runs": [dict(row) for row in done.values()],
    }


def _codes(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Return the digests of the code that runs with and without the plug-in came from."""
    codes: dict[str, set[str]] = {"with the plug-in": set(), "without it": set()}
    for row in rows:
        which = "without it" if ARMS[row["arm"]].plugin is None else "with the plug-in"
        codes[which].add(row["code"])
    return {which: sorted(found) for which, found in codes.items()}
