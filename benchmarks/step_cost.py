"""Cost of the plug-in in a full step: time and memory, of loops that take turns in one process."""

from __future__ import annotations

import gc
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.optim import Optimizer

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
    """A training loop, plain (``engine`` is None) or with the plug-in of some options.

    ``full_step`` takes one full step of the user's own, and returns its loss.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        full_step: Callable[[], Tensor],
        options: Mapping[str, Any] | None,
    ) -> None:
        self._full_step = full_step
        self._cuda = next(model.parameters()).device.type == "cuda"
        self.engine: HybridEngine | None = None
        if options is not None:
            endless = {"total_steps": 10**9, "warmup_steps": 1, "cooldown_steps": 1}
            self.engine = HybridEngine(model, optimizer, HybridConfig(**{**endless, **options}))

    def step(self) -> None:
        """Take one full step, after the predicted steps that are due."""
        if self.engine is not None:
            self.engine.before_step()
        loss = self._full_step()
        if self.engine is not None:
            self.engine.after_step(loss)

    def run(self, steps: int) -> float:
        """Return the seconds of full steps: processor time on a CPU, wall time on CUDA."""
        started = self._clock()
        for _ in range(steps):
            self.step()
        return self._clock() - started

    def _clock(self) -> float:
        if not self._cuda:
            return process_time()
        torch.cuda.synchronize()
        return perf_counter()

    def close(self) -> None:
        """Detach the engine from the model."""
        if self.engine is not None:
            self.engine.detach()


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Measure time and memory (bytes) of each of :data:`WAYS`, after a block that does not count.

    Ratios are medians over blocks, with their quartiles.
    """
    loops = {way: _loop(task, way) for way in WAYS}
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


def _loop(task: Task, way: str) -> Loop:
    recipe = task.recipe
    model = task.model(0)
    batches = task.batches(0)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
        fused=True,
    )

    def full_step() -> Tensor:
        return task.full_step(model, next(batches), optimizer)

    return Loop(model, optimizer, full_step, WAYS[way])


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
    loop = _loop(task, way)
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


@contextmanager
def without_advice() -> Iterator[None]:
    """Silence the plug-in's advice inside the block: its cost is high on tasks this small."""
    logger = logging.getLogger("hybrid_predict")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def set_imports_aside() -> None:
    """Hide all objects that are alive from the garbage collector, and so from what is measured.

    Imported packages leave many objects. Looking at all of them takes half a second. Call this
    after the imports, and before data are loaded.
    """
    import_module("torch._dynamo")  # otherwise an optimizer imports it in its first step
    gc.freeze()
