"""The runs of a study: cells of tasks, arms, settings and seeds, their plan, and their making."""

from __future__ import annotations

import gc
import json
import logging
import math
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from benchmarks.arms import ARMS
from benchmarks.optimizers import Rates
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.runtime import Rows

K = TypeVar("K")

TUNING = "tuning"  # setting of runs over a grid
TUNING_SEED = 1000  # their seed; comparisons use others

Row = Mapping[str, Any]  # the fields of a finished run and its results


@dataclass(frozen=True)
class Cell:
    """One training run of T = ``steps``; ``recipe`` is a digest of task and arm."""

    task: str
    setting: str
    arm: str
    seed: int
    rate: float
    hidden: float
    decay: bool
    steps: int
    recipe: str

    @property
    def rates(self) -> Rates:
        return Rates(self.rate, self.hidden)

    @property
    def budget(self) -> int:
        """Full steps, if all predicted steps stand."""
        return ARMS[self.arm].full_steps(self.steps)


class Selection(NamedTuple):
    """The part of a study that a command chooses; None leaves what the study has."""

    tasks: Sequence[str] | None = None
    settings: Sequence[str] | None = None
    arms: Sequence[str] | None = None
    seeds: int | None = None
    text: Path | None = None


def check_chosen(argument: str, chosen: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raise `ConfigError` if a chosen name is not one of those that a study has."""
    names = list(dict.fromkeys(known))
    for name in chosen or ():
        if name not in names:
            raise ConfigError(argument, f"names out of {', '.join(names)}", name)


class Plan(ABC, Generic[K]):
    """The runs of a study by their keys; some are known only once others are finished."""

    @abstractmethod
    def keys(self, done: Mapping[K, Row]) -> Iterator[K]:
        """Yield the runs that can be made now, in order, with the finished ones."""

    @abstractmethod
    def key(self, row: Row) -> K:
        """Return the key of a row."""

    @abstractmethod
    def work(self, key: K) -> Row:
        """Make a run, in any process, and return its row."""

    def holds(self, row: Row) -> bool:
        """Return whether a finished run would be made in the same way again."""
        return True

    def ready(self, done: Mapping[K, Row]) -> list[K]:
        """Return the runs that can be made now; more are ready once these are finished."""
        return [key for key in dict.fromkeys(self.keys(done)) if key not in done]


def number(loss: float | None) -> float:
    """Return a loss of a results file, with infinity for None, a diverged run."""
    return math.inf if loss is None else loss


def make_runs(plan: Plan[K], store: Rows[K], jobs: int = 1) -> None:
    """Make the runs that are missing until none is; each row is stored and printed at once."""
    with workers(jobs) as pool:
        running: dict[Future[Row], K] = {}
        try:
            while True:
                waiting = [key for key in plan.ready(store.done) if key not in running.values()]
                # Submit only one run ahead per process: finished ones decide which come next.
                for key in waiting[: 2 * jobs - len(running)]:
                    running[pool.submit(plan.work, key)] = key
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    store.add(row := future.result())
                    print(json.dumps(row), flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
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
