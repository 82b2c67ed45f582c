"""Runs at the edge of what the plug-in is for, see :mod:`benchmarks.tasks.edges`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks import arms
from benchmarks.arms import code_digest
from benchmarks.plan import Cell, Plan, Row, Selection, check_chosen
from benchmarks.tasks import Task
from benchmarks.tasks.edges import CHANGING, FEW, HEADS, TASKS, TUNED
from benchmarks.train import Run
from benchmarks.views import NONE, view

ARMS = ("plain", "short", "corrected", "hybrid", "auto")
"""As in the suites: ``short`` and ``corrected`` take two thirds of the steps."""

PLAIN = ("plain", "short")
GUARDS = ("pause", "ignore")
"""Values of ``on_overfit`` on data that a model overfits; elsewhere it is the first."""

VALIDATIONS = 40
SEEDS = 3

SPAN = 0.05  # share of the run over which the average of its weights reaches


class Key(NamedTuple):
    """A run: ``guard`` is the value of ``on_overfit``, empty without the plug-in."""

    task: str
    arm: str
    guard: str
    seed: int


class EdgesPlan(Plan[Key]):
    """All tasks, arms and guards, seed by seed."""

    def __init__(self, chosen: Selection) -> None:
        check_chosen("tasks", chosen.tasks, TASKS)
        check_chosen("arms", chosen.arms, ARMS)
        self._chosen = chosen

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        for seed in range(self._chosen.seeds or SEEDS):
            for task in self._chosen.tasks or TASKS:
                for arm in self._chosen.arms or ARMS:
                    guards = GUARDS if task in FEW else GUARDS[:1]
                    for guard in ("",) if arm in PLAIN else guards:
                        yield Key(task, arm, guard, seed)

    def key(self, row: Row) -> Key:
        return Key(*(row[name] for name in Key._fields))

    def work(self, key: Key) -> Row:
        torch.set_num_threads(1)
        return {**key._asdict(), **_trained(key), "code": code_digest(plugin=True)}

    def holds(self, row: Row) -> bool:
        return not row["guard"] or bool(row["code"] == code_digest(plugin=True))


def _trained(key: Key) -> dict[str, Any]:
    """Train a run, with validations of its weights and of their average after equal shares."""
    task = TASKS[key.task]
    rate = task.recipe.learning_rate
    cell = Cell(key.task, "edges", key.arm, key.seed, rate, 1.0, True, task.steps, "")
    run = Run(cell, task, on_overfit=key.guard or "ignore")
    decay = 1.0 - 1.0 / (SPAN * task.steps)
    average = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    every = task.steps // VALIDATIONS
    curve: list[tuple[float, int, int]] = []
    averaged: list[float] = []
    steps = 0
    while not run.done:
        if key.task in CHANGING:
            CHANGING[key.task].go_to(steps / arms.ARMS[key.arm].schedule(task.steps))
        run.step()
        average.update_parameters(run.model)
        steps = run.engine.ledger.steps if run.engine else run.full_steps
        if steps >= every * (len(curve) + 1):
            value = task.final_loss(run.model)
            curve.append((value, steps, run.full_steps))
            averaged.append(task.final_loss(average.module))
            if run.engine:
                run.engine.observe_validation(value)
    run.close()
    best, step, full = min(curve)
    return {
        "full_steps": run.full_steps,
        "last": task.final_loss(run.model),
        "best": best,
        "best_step": step,
        "best_full": full,
        "last_averaged": task.final_loss(average.module),
        "best_averaged": min(averaged),
    }


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return the tables of the pages."""
    return {
        "overfitting": lambda: view(_best(rows)),
        "new targets": lambda: view(_ends(rows, CHANGING)),
        "few hidden": lambda: view(_ends(rows, HEADS)),
        "fine-tuning": lambda: view(_ends(rows, TUNED)),
    }


def _best(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield a row per task, arm and guard of the data that a model overfits."""
    for name, arm, guard in product(FEW, ARMS, ("", *GUARDS)):
        runs = [r for r in rows if (r["task"], r["arm"], r["guard"]) == (name, arm, guard)]
        if not runs:
            continue
        measured = runs[0].keys() - {*Key._fields, "code"}
        mean = {field: fmean(run[field] for run in runs) for field in measured}
        yield {
            "task": FEW[name].title,
            "arm": arm,
            "`on_overfit`": guard or NONE,
            "full steps": f"{mean['full_steps']:,.0f}",
            "last": f"{mean['last']:,.3f}",
            "best": f"{mean['best']:,.3f}",
            "after step": f"{mean['best_step']:,.0f}",
            "after full steps": f"{mean['best_full']:,.0f}",
            "last, averaged": f"{mean['last_averaged']:,.3f}",
            "best, averaged": f"{mean['best_averaged']:,.3f}",
            "seeds": str(len(runs)),
        }


def _ends(rows: Sequence[Row], tasks: Mapping[str, Task]) -> Iterator[dict[str, str]]:
    """Yield a row per task, with final losses and mean full steps of every arm."""
    for name, task in tasks.items():
        runs = {arm: [r for r in rows if (r["task"], r["arm"]) == (name, arm)] for arm in ARMS}
        if all(runs.values()):
            yield {"task": task.title} | {arm: _end(mine) for arm, mine in runs.items()}


def _end(runs: Sequence[Row]) -> str:
    losses = [run["last"] for run in runs]
    full = fmean(run["full_steps"] for run in runs)
    return f"{fmean(losses):.3f} [{min(losses):.3f}, {max(losses):.3f}], {full:,.0f}"
