"""Runs on data that a model overfits, with and without the guard that reads their validations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch

from benchmarks.arms import code_digest
from benchmarks.plan import Cell, Plan, Row, Selection, check_chosen
from benchmarks.tasks.few import TASKS
from benchmarks.train import Run
from benchmarks.views import view

ARMS = ("plain", "corrected", "hybrid", "auto")
"""As in the suites: ``corrected`` takes two thirds of the steps, on a schedule of its own."""

GUARDS = ("pause", "ignore")
VALIDATIONS = 40
SEEDS = 3


class Key(NamedTuple):
    """A run: ``guard`` is the value of ``on_overfit``, empty without the plug-in."""

    task: str
    arm: str
    guard: str
    seed: int


class OverfittingPlan(Plan[Key]):
    """All tasks, arms and guards, seed by seed."""

    def __init__(self, chosen: Selection) -> None:
        check_chosen("tasks", chosen.tasks, TASKS)
        check_chosen("arms", chosen.arms, ARMS)
        self._chosen = chosen

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        for seed in range(self._chosen.seeds or SEEDS):
            for task in self._chosen.tasks or TASKS:
                for arm in self._chosen.arms or ARMS:
                    for guard in GUARDS if arm != "plain" else ("",):
                        yield Key(task, arm, guard, seed)

    def key(self, row: Row) -> Key:
        return Key(*(row[name] for name in Key._fields))

    def work(self, key: Key) -> Row:
        torch.set_num_threads(1)
        return {**key._asdict(), **_trained(key), "code": code_digest("hybrid")}

    def tell(self, row: Row) -> str:
        return (
            f"{' '.join(map(str, self.key(row)))}: best {row['best']:.3f}, last {row['last']:.3f}"
        )

    def holds(self, row: Row) -> bool:
        return not row["guard"] or bool(row["code"] == code_digest("hybrid"))


def _trained(key: Key) -> dict[str, Any]:
    """Train a run, with a validation after every fortieth of its steps."""
    task = TASKS[key.task]
    rate = task.recipe.learning_rate
    cell = Cell(key.task, "few", key.arm, key.seed, rate, 1.0, True, task.steps, "")
    run = Run(cell, task, on_overfit=key.guard or "ignore")
    every = task.steps // VALIDATIONS
    curve: list[tuple[float, int, int]] = []
    while not run.done:
        run.step()
        steps = run.engine.ledger.steps if run.engine else run.full_steps
        if steps >= every * (len(curve) + 1):
            value = task.final_loss(run.model)
            curve.append((value, steps, run.full_steps))
            if run.engine:
                run.engine.observe_validation(value)
    run.close()
    best, step, full = min(curve)
    counts = {"best": best, "best_step": step, "best_full": full, "full_steps": run.full_steps}
    return {**counts, "last": task.final_loss(run.model)}


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return the table of the page."""
    return {"overfitting": lambda: view(_lines(rows))}


def _lines(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for name, arm, guard in product(TASKS, ARMS, ("", *GUARDS)):
        runs = [r for r in rows if (r["task"], r["arm"], r["guard"]) == (name, arm, guard)]
        if not runs:
            continue
        fields = ("full_steps", "last", "best", "best_step", "best_full")
        mean = {field: fmean(run[field] for run in runs) for field in fields}
        yield {
            "task": TASKS[name].title,
            "arm": arm,
            "`on_overfit`": guard or "n/a",
            "full steps": f"{mean['full_steps']:,.0f}",
            "last": f"{mean['last']:,.3f}",
            "best": f"{mean['best']:,.3f}",
            "after step": f"{mean['best_step']:,.0f}",
            "after full steps": f"{mean['best_full']:,.0f}",
            "seeds": str(len(runs)),
        }
