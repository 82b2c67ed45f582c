"""Makes the runs of a plan in several processes, and stores each finished one."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.plan import Plan, Row, as_cell
from hybrid_predict.runs.runtime import Rows

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
    with workers(jobs) as pool:
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


def workers(jobs: int) -> ProcessPoolExecutor:
    """Return processes for training: one thread each, and a quiet log."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, initializer=_start)


def _start() -> None:
    import_module("torch._dynamo")  # otherwise an optimizer imports it in its first step
    gc.freeze()  # looking at all objects of imported packages takes half a second
    torch.set_num_threads(1)
    logging.getLogger("hybrid_predict").setLevel(logging.ERROR)
