"""Runs of yardsticks that others made: tasks at their published rates, with and without targets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.digests import code_digest, recipe_digest
from benchmarks.plan import Cell, Row, Selection, to_row
from benchmarks.run import CellPlan, trained
from benchmarks.tasks import Recipe, Task
from benchmarks.train import Run, warm


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task at its published learning rate.

    With a ``target`` of its metric a run ends when it is reached; that is looked at every so many
    full steps. ``published`` is what others report, ``fixed`` a task that no seed changes.
    """

    task: Task
    target: float | None = None
    every: int = 1
    published: str = ""
    fixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """Cases with the arms that are compared on them, and seeds."""

    name: str
    arms: tuple[str, ...]
    cases: tuple[Case, ...]
    seeds: int = 5

    def case(self, task: str) -> Case:
        """Return the case of a task's name."""
        return next(case for case in self.cases if case.task.name == task)

    def published(self, task: str) -> str:
        """Return what to compare a task with; the name of the only one may be a text file's."""
        alone = len(self.cases) == 1
        return (self.cases[0] if alone else self.case(task)).published

    def cells(self, seeds: int | None = None) -> Iterator[Cell]:
        """Yield all runs, seed by seed."""
        for seed in range(seeds or self.seeds):
            for case in self.cases:
                if seed == 0 or not case.fixed:
                    yield from (self._cell(case, arm, seed) for arm in self.arms)

    def _cell(self, case: Case, arm: str, seed: int) -> Cell:
        # Up to a target every arm may take T full steps.
        share = 1.0 if case.target is None else ARMS[arm].share
        steps = round(case.task.steps / share)
        digest = recipe_digest(replace(case.task, steps=steps), ARMS[arm])
        rate = case.task.recipe.learning_rate
        return Cell(case.task.name, self.name, arm, seed, rate, 1.0, True, steps, digest)


class YardstickPlan(CellPlan):
    """The runs of yardsticks; the setting of a cell is the name of its yardstick."""

    def __init__(self, yardsticks: Mapping[str, Yardstick], chosen: Selection) -> None:
        self._yardsticks = dict(yardsticks)
        cells = (cell for each in yardsticks.values() for cell in each.cells(chosen.seeds))
        self._cells = [cell for cell in cells if chosen.has(cell)]

    def keys(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        """Yield all runs."""
        yield from self._cells

    def task(self, cell: Cell) -> Task:
        """Return the task of a cell."""
        return self._case(cell).task

    def work(self, cell: Cell) -> Row:
        """Train a cell; ``elapsed`` are seconds of the clock, with data and evaluations."""
        case, started = self._case(cell), perf_counter()
        row = trained(cell, case.task) if case.target is None else _until(cell, case, case.target)
        return {**row, "elapsed": perf_counter() - started}

    def _case(self, cell: Cell) -> Case:
        return self._yardsticks[cell.setting].case(cell.task)


def constant(rate: float) -> Recipe:
    """Return Adam at a constant rate, with its default betas, as most yardsticks have it."""
    return Recipe(
        learning_rate=rate,
        rates=(rate,),
        betas=(0.9, 0.999),
        weight_decay=0.0,
        gradient_clip=None,
        warmup_fraction=0.0,
        schedule="constant",
    )


class Watched(Run):
    """A run that ends when its metric reaches a target, in full step ``hit``, or after T ones."""

    def __init__(self, cell: Cell, case: Case, target: float) -> None:
        super().__init__(cell, case.task)
        self.hit: int | None = None
        self._case = case
        self._target = target

    @property
    def done(self) -> bool:
        """Whether the target is reached or all steps are made."""
        spent = self.full_steps >= self._case.task.steps
        return self.hit is not None or spent or super().done

    def step(self) -> None:
        """Take one full step, and look at the metric if it is time."""
        super().step()
        looked = self.full_steps % self._case.every == 0
        if looked and self._case.task.final_loss(self.model) <= self._target:
            self.hit = self.full_steps


def _until(cell: Cell, case: Case, target: float) -> dict[str, Any]:
    """Train until the target is reached; ``seconds`` are of processor time."""
    warm(case.task)
    run, started = Watched(cell, case, target), process_time()
    run.train()
    seconds, loss = process_time() - started, case.task.final_loss(run.model)
    results = {
        "loss": loss if run.finite and math.isfinite(loss) else None,
        **run.counts(),
        "hit": run.hit,
        "seconds": seconds,
        "code": code_digest(cell.arm),
    }
    return to_row(cell, results)
