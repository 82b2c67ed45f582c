"""Cost of the plug-in in a full step: time and memory, of loops that take turns in one process."""

from __future__ import annotations

import gc
import statistics
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from benchmarks.tasks import Task
from benchmarks.train import warm
from hybrid_predict import HybridConfig, HybridEngine, MomentumPredictor

_DRIFT = {"hidden": MomentumPredictor(gated=False)}
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "corrected": {"speedup": 1},
    "predicted": {"predictors": _DRIFT, "updates": {}},
    "both": {"predictors": _DRIFT},
}
"""Arguments of `HybridConfig` by the name of what is measured, at the default speedup."""

ADDED = tuple(way for way, options in WAYS.items() if options is not None)


class Loop:
    """A training loop of a task with fused AdamW, in one of :data:`WAYS`."""

    def __init__(self, task: Task, way: str) -> None:
        self._task = task
        self._model = task.model(0)
        self._batches = task.batches(0)
        self._optimizer = task.recipe.adamw(self._model.parameters(), fused=True)
        self.engine: HybridEngine | None = None
        if (options := WAYS[way]) is not None:
            config = HybridConfig(total_steps=10**9, warmup_steps=1, cooldown_steps=1, **options)
            self.engine = HybridEngine(self._model, self._optimizer, config)

    def run(self, steps: int) -> float:
        """Return the seconds of full steps: processor time on a CPU, wall time on CUDA."""
        started = _clock()
        for _ in range(steps):
            if self.engine is not None:
                self.engine.before_step()
            loss = self._task.full_step(self._model, next(self._batches), self._optimizer)
            if self.engine is not None:
                self.engine.after_step(loss)
        return _clock() - started

    def close(self) -> None:
        """Detach the engine from the model."""
        if self.engine is not None:
            self.engine.detach()


def _clock() -> float:
    if not torch.cuda.is_available():
        return process_time()
    torch.cuda.synchronize()
    return perf_counter()


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Measure time and memory (bytes) of each of :data:`WAYS`, after a block that does not count.

    Ratios are medians over blocks, with their quartiles.
    """
    loops = {way: Loop(task, way) for way in WAYS}
    for loop in loops.values():
        loop.run(length)
    rounds = [{way: loop.run(length) for way, loop in loops.items()} for _ in range(blocks)]
    for loop in loops.values():
        loop.close()
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
    for way in WAYS:
        results[way]["memory"] = _memory(task, way)
    return results


def _memory(task: Task, way: str) -> int:
    """Return the bytes that twelve full steps allocate.

    On a CUDA device this is the peak that torch's allocator records. On the CPU it is the size of
    the tensors that are alive afterwards, without activations.
    """
    warm(task)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else _held()
    loop = Loop(task, way)
    loop.run(12)
    used = (torch.cuda.max_memory_allocated() if cuda else _held()) - before
    loop.close()
    return used


def _held() -> int:
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not is_fake(x)]
    gradients = [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    storages = {x.untyped_storage().data_ptr(): x for x in (*tensors, *gradients)}
    return sum(x.untyped_storage().nbytes() for x in storages.values())
