"""Runs the cells of a plan in several processes, and stores each finished one."""

from __future__ import annotations

import ast
import hashlib
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

import hybrid_predict
from benchmarks.arms import ARMS
from benchmarks.measure import without_advice
from benchmarks.memory import set_imports_aside
from benchmarks.plan import TUNING, Cell, Plan, Row, as_cell, to_row
from benchmarks.step_cost import measure
from benchmarks.tasks import Task
from benchmarks.train import train
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.runs.rows import RUNS, Rows
from hybrid_predict.runs.runtime import threads

RESULTS = "results.json"
SCHEMA = 2

FIELDS = frozenset(
    ("schema", "suite", "seeds", "arms", "cells", "environment", "code", "tasks", "steps", "runs")
)

K = TypeVar("K")

OnRow = Callable[[Row], object]


def stored(folder: Path) -> Rows[Cell]:
    """Return the finished cells of an output folder; it is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return Rows(folder / RUNS, as_cell)


def run_plan(plan: Plan, store: Rows[Cell], jobs: int = 1, on_row: OnRow = bool) -> dict[Cell, Row]:
    """Run the cells that are not finished yet; return the rows of the plan by cell."""
    make_rows(store, partial(plan.ready, store.done), partial(_train_one, plan.tasks), jobs, on_row)
    return plan.chosen(store.done)


def make_rows(
    store: Rows[K],
    ready: Callable[[], Iterable[K]],
    work: Callable[[K], Row],
    jobs: int,
    on_row: OnRow,
) -> None:
    """Do what is ready in several processes until nothing is; each row is stored as it is done."""
    if jobs < 1:
        raise ConfigError("jobs", "an integer, at least 1", jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=start_worker) as pool:
        running: dict[Future[Row], K] = {}
        try:
            while True:
                under_way = {*running.values(), *store.done}
                waiting = [key for key in ready() if key not in under_way]
                # Submit only one run ahead per process: finished ones decide which come next.
                for key in waiting[: 2 * jobs - len(running)]:
                    running[pool.submit(work, key)] = key
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    store.add(row := future.result())
                    on_row(row)
        except BaseException:
            for future in running:
                future.cancel()
            raise


def trained(cell: Cell, task: Task) -> dict[str, Any]:
    """Train a cell and return its row."""
    return to_row(cell, {**train(cell, task), "code": code_digest(cell.arm)})


def _train_one(tasks: Mapping[str, Task], cell: Cell) -> Row:
    return trained(cell, tasks[cell.task])


def tell(row: Row) -> None:
    """Print a line on a finished run."""
    trial = ", trial" if row["setting"] == TUNING else ""
    print(
        f"{row['task']}, {row['arm']}, T = {row['steps']:,}, rate {row['rate']:g} x "
        f"{row['hidden']:g}, seed {row['seed']}{trial}: {row['full_steps']:,} full steps in "
        f"{row['seconds']:.1f} s, {outcome(row)}",
        flush=True,
    )


def outcome(row: Row) -> str:
    """Return the final loss in words."""
    return "diverged" if row["loss"] is None else f"loss {row['loss']:.4f}"


_TRAINING = ("tasks", "peers", "optimizers.py", "train.py")
"""Code of the benchmark that a result depends on."""

_ASIDE = {
    "audit", "cli", "demo", "functional", "integrations", "report", "runs", "testing",
    "errors.py", "html.py", "refusals.py",
}  # fmt: skip
"""Folders and files of the package that no result depends on."""


def start_worker() -> None:
    """Prepare a process for training: one thread, and a quiet log."""
    set_imports_aside()
    torch.set_num_threads(1)
    logging.getLogger("hybrid_predict").setLevel(logging.ERROR)


def code_digest(arm: str) -> str:
    """Return 12 hexadecimal digits over the code that an arm runs, and the version of torch.

    Comments and docstrings do not count.
    """
    return _digest(plugin=ARMS[arm].plugin is not None)


@lru_cache
def _digest(*, plugin: bool) -> str:
    digest = hashlib.sha256(torch.__version__.encode())
    here, package = Path(__file__).parent, Path(hybrid_predict.__file__).parent
    sources = [(here, path) for path in here.rglob("*.py")
               if path.relative_to(here).parts[0] in _TRAINING]  # fmt: skip
    if plugin:
        sources += [(package, path) for path in package.rglob("*.py")
                    if not _ASIDE & set(path.relative_to(package).parts)]  # fmt: skip
    for root, path in sorted(sources):
        digest.update(f"{path.relative_to(root).as_posix()}{statements(path)}".encode())
    return digest.hexdigest()[:12]


def statements(path: Path) -> str:
    """Return the code of a file without comments and docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [each for each in node.body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def check_device(plan: Plan) -> None:
    """Check that there is a CUDA device if a task needs one."""
    needy = [name for name, task in plan.tasks.items() if task.needs_cuda and not plan.suite.tiny]
    if needy and not torch.cuda.is_available():
        raise UnsupportedSetupError(
            "tasks", "a CUDA device", needy[0], "Choose other tasks with --tasks."
        )


def measure_steps(plan: Plan) -> dict[str, Any]:
    """Measure the cost of the plug-in for each task on one thread; see `step_cost.measure`."""
    short = {"blocks": 2, "length": 2} if plan.suite.tiny else {}
    names = plan.suite.measured or plan.suite.tasks
    set_imports_aside()
    with threads(1), without_advice():
        return {name: measure(plan.task(name), **short) for name in names}


def compile_results(
    suite: str,
    plan: Plan,
    done: Mapping[Cell, Row],
    environment: Mapping[str, Any],
    steps: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of a results file as plain data."""
    return {
        "schema": SCHEMA,
        "suite": suite,
        "seeds": plan.suite.seeds,
        "arms": {name: list(plan.arms(name)) for name in plan.suite.arms},
        "cells": {"planned": len(plan), "done": len(done)},
        "environment": dict(environment),
        "code": codes(done),
        "tasks": {name: task.to_dict() for name, task in plan.tasks.items()},
        "steps": dict(steps),
        "runs": [dict(row) for row in done.values()],
    }


def codes(done: Mapping[Cell, Row]) -> dict[str, list[str]]:
    """Return the digests of the code that runs with and without the plug-in came from."""

    def found(*, plugin: bool) -> list[str]:
        arms = {a.name for a in ARMS.values() if (a.plugin is not None) == plugin}
        return sorted({row["code"] for cell, row in done.items() if cell.arm in arms})

    return {"with the plug-in": found(plugin=True), "without it": found(plugin=False)}
