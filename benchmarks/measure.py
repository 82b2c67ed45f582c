"""Measures time and memory of full steps, in loops that take turns in one process."""

from __future__ import annotations

import gc
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.optim import Optimizer

from hybrid_predict import HybridConfig, HybridEngine

Rounds = Sequence[Mapping[str, float]]
"""Seconds of one block of each loop, by name, per round."""


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
        self.full_step = full_step
        self.device = next(model.parameters()).device
        self.engine: HybridEngine | None = None
        if options is not None:
            endless = {"total_steps": 10**9, "warmup_steps": 1, "cooldown_steps": 1}
            self.engine = HybridEngine(model, optimizer, HybridConfig(**{**endless, **options}))

    def step(self) -> int:
        """Take one full step, after the predicted steps that are due; return the ticks."""
        if self.engine is not None:
            self.engine.before_step()
        loss = self.full_step()
        return 1 if self.engine is None else self.engine.after_step(loss).ticks

    def run(self, steps: int) -> float:
        """Return the seconds of full steps: processor time on a CPU, wall time on CUDA."""
        clock = perf_counter if self.device.type == "cuda" else process_time
        self._wait()
        started = clock()
        for _ in range(steps):
            self.step()
        self._wait()
        return clock() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Detach the engine from the model."""
        if self.engine is not None:
            self.engine.detach()


def take_turns(loops: Mapping[str, Loop], blocks: int, length: int) -> Rounds:
    """Return the seconds of each block of each loop, after one block that is not counted."""
    for loop in loops.values():
        loop.run(length)
    return [{name: loop.run(length) for name, loop in loops.items()} for _ in range(blocks)]


def ratio(rounds: Rounds, name: str, base: str) -> dict[str, Any]:
    """Return the median over blocks of one loop's time over another's, and its quartiles."""
    return middle([seconds[name] / seconds[base] for seconds in rounds])


def middle(ratios: Sequence[float]) -> dict[str, Any]:
    """Return the median as ``ratio``, and ``quartiles``, which are the value itself if alone."""
    if len(ratios) < 2:
        return {"ratio": ratios[0], "quartiles": [ratios[0]] * 2}
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"ratio": median, "quartiles": [low, high]}


def waits(step: Callable[[], object], steps: int) -> str | None:
    """Return torch's message on the first synchronisation in ``steps`` full steps, or None."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(steps):
            step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return None


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
    """Hide all objects that are alive from the garbage collector, and so from `Memory`.

    Imported packages leave many objects. Looking at all of them takes half a second. Call this
    after the imports, and before data are loaded.
    """
    import_module("torch._dynamo")  # otherwise an optimizer imports it in its first step
    gc.freeze()


class Memory:
    """Measures the bytes allocated after the object was made.

    On a CUDA device this is the peak that torch's allocator records. On the CPU no peak is
    recorded; there it is the size of the tensors that are alive, without activations.
    """

    def __init__(self) -> None:
        self._cuda = torch.cuda.is_available()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated() if self._cuda else _held()

    def used(self) -> int:
        """Return the bytes used since this object was made."""
        now = torch.cuda.max_memory_allocated() if self._cuda else _held()
        return now - self._before


def _held() -> int:
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not is_fake(x)]
    gradients = [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    storages = {x.untyped_storage().data_ptr(): x for x in (*tensors, *gradients)}
    return sum(x.untyped_storage().nbytes() for x in storages.values())
