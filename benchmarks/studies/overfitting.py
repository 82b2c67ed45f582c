"""Runs on data that a model overfits, with and without the guard that reads their validations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.digests import code_digest
from benchmarks.plan import Cell, Plan, Row, Selection, check_chosen
from benchmarks.tasks.few import TASKS
from benchmarks.train import Run
from benchmarks.views import view

ARMS = ("plain", "corrected", "hybrid", "auto")
"""As in the suites: ``corrected`` takes two thirds of the steps, on a schedule of its own."""

GUARDS = ("pause", "ignore")
VALIDATIONS = 40
SEEDS = 3
SPAN = 40
"""Full steps over which the average of the weights reaches: a twentieth of a run."""


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
        """Yield all runs, seed by seed."""
        for seed in range(self._chosen.seeds or SEEDS):
            for task in self._chosen.tasks or TASKS:
                for arm in self._chosen.arms or ARMS:
                    for guard in GUARDS if arm != "plain" else ("",):
                        yield Key(task, arm, guard, seed)

    def key(self, row: Row) -> Key:
        """Return the key of a row."""
        return Key(*(row[name] for name in Key._fields))

    def work(self, key: Key) -> Row:
        """Make a run."""
        torch.set_num_threads(1)
        return {**key._asdict(), **_trained(key), "code": code_digest("hybrid")}

    def tell(self, row: Row) -> str:
        """Return a line on a finished run."""
        return (
            f"{' '.join(map(str, self.key(row)))}: best {row['best']:.3f}, last {row['last']:.3f}"
        )

    def holds(self, row: Row) -> bool:
        """Return whether the code that made a run is that of now."""
        return not row["guard"] or bool(row["code"] == code_digest("hybrid"))


def _trained(key: Key) -> dict[str, Any]:
    """Train a run, with validations of its weights and of their average, all in equal distances."""
    task = TASKS[key.task]
    rate = task.recipe.learning_rate
    cell = Cell(key.task, "few", key.arm, key.seed, rate, 1.0, True, task.steps, "")
    run = Run(cell, task, on_overfit=key.guard or "ignore")
    average = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(1 - 1 / SPAN))
    every = task.steps // VALIDATIONS
    curve: list[tuple[float, int, int]] = []
    averaged: list[float] = []
    while not run.done:
        run.step()
        average.update_parameters(run.model)
        steps = run.engine.ledger.steps if run.engine else run.full_steps
        if steps >= every * (len(curve) + 1):
            value = task.final_loss(run.model)
            curve.append((value, steps, run.full_steps))
            averaged.append(task.final_loss(average.module))
            if run.engine:
                run.engine.observe_validation(value)
    if run.engine:
        run.engine.detach()
    best, step, full = min(curve)
    return {
        "best": best,
        "best_step": step,
        "best_full": full,
        "best_averaged": min(averaged),
        "full_steps": run.full_steps,
        "last": task.final_loss(run.model),
        "last_averaged": task.final_loss(average.module),
    }


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return the table of the page."""
    return {"overfitting": lambda: view(_lines(rows))}


def _lines(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for name, task in TASKS.items():
        for arm in ARMS:
            for guard in ("", *GUARDS):
                chosen = (name, arm, guard)
                runs = [r for r in rows if (r["task"], r["arm"], r["guard"]) == chosen]
                if not runs:
                    continue

                def mean(field: str, places: int, runs: Sequence[Row] = runs) -> str:
                    return f"{fmean(run[field] for run in runs):,.{places}f}"

                yield {
                    "task": task.title,
                    "arm": arm,
                    "`on_overfit`": guard or "n/a",
                    "full steps": mean("full_steps", 0),
                    "last": mean("last", 3),
                    "best": mean("best", 3),
                    "after step": mean("best_step", 0),
                    "after full steps": mean("best_full", 0),
                    "last, averaged": mean("last_averaged", 3),
                    "best, averaged": mean("best_averaged", 3),
                    "seeds": str(len(runs)),
                }
