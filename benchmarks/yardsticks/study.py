"""Runs of yardsticks that others made: tasks at their published rates, with and without targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter, process_time
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from benchmarks.arms import ARMS
from benchmarks.plan import Cell, Row, as_cell, recipe_digest, to_row
from benchmarks.run import code_digest, trained
from benchmarks.tasks import Recipe, Task
from benchmarks.train import Run, warm

FILE = "yardsticks.jsonl"

K = TypeVar("K")


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


class Study(NamedTuple, Generic[K]):
    """What makes the runs of a name: by their keys, with rows in a file."""

    name: str
    file: str
    key: Callable[[Row], K]
    keys: Callable[[int], Iterable[K]]
    measure: Callable[[K], Row]
    tell: Callable[[Row], object]


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """Cases with the arms that are compared on them."""

    name: str
    arms: tuple[str, ...]
    cases: tuple[Case, ...]

    @property
    def study(self) -> Study[Cell]:
        """What makes its runs."""
        return Study(self.name, FILE, as_cell, self.cells, self.measure, tell)

    def case(self, task: str) -> Case:
        """Return the case of a task's name."""
        return next(case for case in self.cases if case.task.name == task)

    def published(self, task: str) -> str:
        """Return what to compare a task with; the name of the only one may be a text file's."""
        alone = len(self.cases) == 1
        return (self.cases[0] if alone else self.case(task)).published

    def cells(self, seeds: int) -> Iterator[Cell]:
        """Return all runs, seed by seed."""
        for seed in range(seeds):
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

    def measure(self, cell: Cell) -> Row:
        """Train a cell; ``elapsed`` are seconds of the clock, with data and evaluations."""
        case, started = self.case(cell.task), perf_counter()
        row = trained(cell, case.task) if case.target is None else _until(cell, case, case.target)
        return {**row, "elapsed": perf_counter() - started}


def constant(rate: float) -> Recipe:
    """Return Adam at a constant rate, with its default betas, as most yardsticks have it."""
    return Recipe(
        learning_rate=rate, rates=(rate,), betas=(0.9, 0.999), weight_decay=0.0,
        gradient_clip=None, warmup_fraction=0.0, schedule="constant",
    )  # fmt: skip


class Watched(Run):
    """A run that ends when its metric reaches a target, in full step ``hit``, or after T ones."""

    def __init__(self, cell: Cell, case: Case, target: float) -> None:
        super().__init__(cell, case.task)
        self.hit: int | None = None
        self._case, self._target = case, target

    @property
    def done(self) -> bool:
        """Whether the target is reached or all steps are made."""
        spent = self.full_steps >= self._case.task.steps
        return self.hit is not None or spent or super().done

    def step(self, full_step: Callable[[], Tensor]) -> None:
        """Take one full step, and look at the metric if it is time."""
        super().step(full_step)
        looked = self.full_steps % self._case.every == 0
        if looked and self._case.task.final_loss(self.model) <= self._target:
            self.hit = self.full_steps


def _until(cell: Cell, case: Case, target: float) -> dict[str, Any]:
    """Train until the target is reached; ``seconds`` are of processor time."""
    warm(case.task)
    run, started = Watched(cell, case, target), process_time()
    run.train()
    seconds, loss = process_time() - started, case.task.final_loss(run.model)
    return to_row(cell, {
        "loss": loss if run.finite and math.isfinite(loss) else None, **run.counts(),
        "hit": run.hit, "seconds": seconds, "code": code_digest(cell.arm),
    })  # fmt: skip


def tell(row: Row) -> None:
    """Print a line on a finished run."""
    loss = "diverged" if row["loss"] is None else f"{row['loss']:.4g}"
    hit = f", target in {row['hit']}" if row.get("hit") else ""
    print(f"{row['task']}, {row['arm']}, seed {row['seed']}: {row['full_steps']:,} full steps in "
          f"{row['seconds']:.1f} s, {loss}{hit}", flush=True)  # fmt: skip
