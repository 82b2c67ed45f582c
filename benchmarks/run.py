"""Runs a plan's cells in several processes, keeping every finished one."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import hybrid_predict
from benchmarks.arms import ARMS
from benchmarks.plan import Cell, Plan, Row, as_cell, to_row
from benchmarks.step_cost import measure
from benchmarks.train import train
from hybrid_predict.accounts import operations
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.runs.rows import RUNS, Rows
from hybrid_predict.runs.runtime import threads

RESULTS = "results.json"
"""The file in the output folder that holds everything together."""

SCHEMA = 2
"""Of the results file: what its fields mean."""

FIELDS = frozenset(
    ("schema", "suite", "seeds", "arms", "cells", "environment", "code", "tasks", "steps", "runs")
)
"""What a results file holds."""

# Says what corrected updates cost, which on tasks this small is more than users are to accept.
_advice = logging.getLogger(operations.__name__)

OnRow = Callable[[Row, int], None]
"""Is told a finished row and how many cells are done."""


def stored(folder: Path) -> Rows[Cell]:
    """Finished cells of an output folder, which need not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    return Rows(folder / RUNS, as_cell)


def run_plan(
    plan: Plan, store: Rows[Cell], jobs: int = 1, on_row: OnRow | None = None
) -> dict[Cell, Row]:
    """Run whatever is not done yet.

    Args:
        plan: The cells.
        store: Finished cells; new ones are added.
        jobs: Processes, with one thread each.
        on_row: Is told of every finished cell.

    Returns:
        The plan's cells with their rows.

    Raises:
        ConfigError: If ``jobs`` is below 1.
    """
    if jobs < 1:
        raise ConfigError("jobs", "an integer, at least 1", jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_start_worker) as pool:
        running: dict[Future[dict[str, Any]], Cell] = {}
        try:
            while True:
                under_way = set(running.values())
                waiting = [c for c in plan.ready(store.done) if c not in under_way]
                # No more than one in hand for each process: what is next depends on what is done.
                for cell in waiting[: 2 * jobs - len(running)]:
                    running[pool.submit(train, cell, plan.tasks[cell.task])] = cell
                if not running:
                    return plan.chosen(store.done)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell = running.pop(future)
                    row = to_row(cell, {**future.result(), "code": code_digest(cell.arm)})
                    store.add(row)
                    if on_row is not None:
                        on_row(row, plan.finished(store.done))
        except BaseException:
            for future in running:
                future.cancel()
            raise


_TRAINING = ("tasks", "peers", "optimizers.py", "train.py")
"""Where the benchmark trains, in its own folder."""

_CORE = (
    "config.py", "engine", "forecast", "updates", "verify", "model", "accounts", "tensors",
)  # fmt: skip
"""Where the package trains; its commands, reports and pages change no result."""


def _start_worker() -> None:
    torch.set_num_threads(1)
    _advice.setLevel(logging.ERROR)


@lru_cache
def code_digest(arm: str) -> str:
    """Twelve hexadecimal digits over the source that an arm trains with, and torch's version."""
    digest = hashlib.sha256(torch.__version__.encode())
    package = Path(hybrid_predict.__file__).parent
    core = _CORE if ARMS[arm].plugin is not None else ("model/kinds.py",)
    for root, names in ((Path(__file__).parent, _TRAINING), (package, core)):
        for path in sorted(path for name in names for path in _sources(root / name)):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _sources(path: Path) -> Iterable[Path]:
    return path.rglob("*.py") if path.is_dir() else [path]


def check_device(plan: Plan) -> None:
    """Make sure that there is a CUDA device if a task needs one.

    Raises:
        UnsupportedSetupError: If there is none.
    """
    needy = [name for name, task in plan.tasks.items() if task.needs_cuda and not plan.suite.tiny]
    if needy and not torch.cuda.is_available():
        raise UnsupportedSetupError(
            "tasks", "a CUDA device", needy[0], "Choose other tasks with --tasks."
        )


def measure_steps(plan: Plan) -> dict[str, Any]:
    """What the plug-in adds to a full step of each task, on one thread; see `step_cost.measure`."""
    short = {"blocks": 2, "length": 2} if plan.suite.tiny else {}
    names = plan.suite.measured or plan.suite.tasks
    level = _advice.level
    _advice.setLevel(logging.ERROR)
    try:
        with threads(1):
            return {name: measure(plan.task(name), **short) for name in names}
    finally:
        _advice.setLevel(level)


def compile_results(
    suite: str,
    plan: Plan,
    done: Mapping[Cell, Row],
    environment: Mapping[str, Any],
    steps: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that a results file holds, as plain data.

    Args:
        suite: Name of the suite.
        plan: Its cells.
        done: The finished ones.
        environment: Versions and hardware.
        steps: What :func:`measure_steps` found; empty if it was not run.
    """
    return {
        "schema": SCHEMA,
        "suite": suite,
        "seeds": plan.suite.seeds,
        "arms": {name: list(plan.arms(name)) for name in plan.suite.arms},
        "cells": {"planned": len(plan), "done": plan.finished(done)},
        "environment": dict(environment),
        "code": codes(done),
        "tasks": {name: task.to_dict() for name, task in plan.tasks.items()},
        "steps": dict(steps),
        "runs": [dict(row) for row in done.values()],
    }


def codes(done: Mapping[Cell, Row]) -> dict[str, list[str]]:
    """Digests of the code of the runs that can be made, with and without the plug-in."""

    def found(*, plugin: bool) -> list[str]:
        arms = {a.name for a in ARMS.values() if not a.kept and (a.plugin is not None) == plugin}
        return sorted({row["code"] for cell, row in done.items() if cell.arm in arms})

    return {"with the plug-in": found(plugin=True), "without it": found(plugin=False)}
