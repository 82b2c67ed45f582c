"""Makes the runs of a plan in several processes, and stores each finished one."""

from __future__ import annotations

import logging
import multiprocessing
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.arms import ARMS
from benchmarks.digests import code_digest
from benchmarks.memory import set_imports_aside
from benchmarks.plan import TUNING, Cell, Plan, Row, as_cell, outcome, to_row
from benchmarks.tasks import Task
from benchmarks.train import train
from hybrid_predict.runs.rows import Rows

K = TypeVar("K")

OnRow = Callable[[Row], object]


def stored(folder: Path, name: str = "runs", plan: Plan[Any] | None = None) -> Rows[Any]:
    """Return the finished runs in a folder, which is created if missing.

    Of a plan they are those that hold: what another state of the code made is made again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store: Rows[Any] = Rows(folder / f"{name}.jsonl", plan.key if plan else as_cell)
    if plan is not None:
        store.done = {key: row for key, row in store.done.items() if plan.holds(row)}
    return store


def make_runs(plan: Plan[K], store: Rows[K], jobs: int = 1, on_row: OnRow = bool) -> dict[K, Row]:
    """Make the runs that are missing until none is; return the rows of the plan by key.

    Each row is stored as it is done.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=start_worker) as pool:
        running: dict[Future[Row], K] = {}
        try:
            while True:
                waiting = [key for key in plan.ready(store.done) if key not in running.values()]
                # Submit only one run ahead per process: finished ones decide which come next.
                for key in waiting[: 2 * jobs - len(running)]:
                    running[pool.submit(plan.work, key)] = key
                if not running:
                    return plan.chosen(store.done)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    store.add(row := future.result())
                    on_row(row)
        except BaseException:
            for future in running:
                future.cancel()
            raise


def start_worker() -> None:
    """Prepare a process for training: one thread, and a quiet log."""
    set_imports_aside()
    torch.set_num_threads(1)
    logging.getLogger("hybrid_predict").setLevel(logging.ERROR)


def trained(cell: Cell, task: Task) -> dict[str, Any]:
    """Train a cell and return its row."""
    return to_row(cell, {**train(cell, task), "code": code_digest(cell.arm)})


class CellPlan(Plan[Cell]):
    """A plan of cells; runs without the plug-in hold for as long as their recipe is the same."""

    @abstractmethod
    def task(self, cell: Cell) -> Task:
        """Return the task of a cell."""

    def key(self, row: Row) -> Cell:
        """Return the cell of a row."""
        return as_cell(row)

    def work(self, cell: Cell) -> Row:
        """Train a cell and return its row."""
        return trained(cell, self.task(cell))

    def holds(self, row: Row) -> bool:
        """Return whether a run has no plug-in, or comes from its present code."""
        arm = ARMS.get(row["arm"])
        return arm is not None and (arm.plugin is None or row["code"] == code_digest(arm.name))

    def tell(self, row: Row) -> str:
        """Return a line on a finished run."""
        trial = ", trial" if row["setting"] == TUNING else ""
        return (
            f"{row['task']}, {row['setting']}, {row['arm']}, T = {row['steps']:,}, "
            f"rate {row['rate']:g} x {row['hidden']:g}, seed {row['seed']}{trial}: "
            f"{row['full_steps']:,} full steps in {row['seconds']:.1f} s, {outcome(row)}"
        )
