"""Cost of the plug-in in a full step: time and memory, of loops that take turns in one process."""

from __future__ import annotations

import gc
import statistics
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from benchmarks.plan import Cell
from benchmarks.tasks import Task
from benchmarks.train import Run, clock, warm

WAYS = {  # arms by the name of what is measured
    "plain": "plain",
    "corrected": "corrected",
    "predicted": "predicted-only",
    "both": "predict-.5",
}

ADDED = tuple(way for way in WAYS if way != "plain")


def _run(task: Task, way: str) -> Run:
    rate = task.recipe.learning_rate
    cell = Cell(task.name, "cost", WAYS[way], 0, rate, 1.0, False, 10**9, "")
    return Run(cell, task, warmup_steps=1, cooldown_steps=1)


def _seconds(run: Run, steps: int) -> float:
    started = clock()
    for _ in range(steps):
        run.step()
    return clock() - started


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Measure time and memory (bytes) of each of :data:`WAYS`, see :func:`timed`."""
    results = timed(task, blocks, length)
    for way in WAYS:
        results[way]["memory"] = _memory(task, way)
    return results


def timed(task: Task, blocks: int, length: int) -> dict[str, Any]:
    """Measure the time of each of :data:`WAYS`: medians over blocks of full steps, quartiles."""
    runs = {way: _run(task, way) for way in WAYS}
    for run in runs.values():
        _seconds(run, length)
    rounds = [{way: _seconds(run, length) for way, run in runs.items()} for _ in range(blocks)]
    for run in runs.values():
        run.close()
    results: dict[str, Any] = {
        "parameters": sum(p.numel() for p in task.model(0).parameters()),
        "plain_ms": 1e3 * statistics.median(seconds["plain"] for seconds in rounds) / length,
        "blocks": blocks,
        "length": length,
        "threads": torch.get_num_threads(),
        "plain": {},
    }
    for way in ADDED:
        ratios = [seconds[way] / seconds["plain"] for seconds in rounds]
        low, median, high = statistics.quantiles(ratios, n=4)
        results[way] = {"ratio": median, "quartiles": [low, high]}
    return results


def _memory(task: Task, way: str) -> int:
    """Return the bytes of twelve full steps: on a CUDA device the peak of torch's allocator.

    On the CPU they are those of the tensors that are alive afterwards, without activations.
    """
    warm(task)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else _held()
    run = _run(task, way)
    _seconds(run, 12)
    used = (torch.cuda.max_memory_allocated() if cuda else _held()) - before
    run.close()
    return used


def _held() -> int:
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not is_fake(x)]
    gradients = [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    storages = {x.untyped_storage().data_ptr(): x for x in (*tensors, *gradients)}
    return sum(x.untyped_storage().nbytes() for x in storages.values())
