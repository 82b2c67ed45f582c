"""What forecasts add to a full step: time, memory, traffic, and waits of the host."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn

from hybrid_predict.bench.memory import Memory
from hybrid_predict.bench.train import warm
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.profiling import traffic
from hybrid_predict.tasks import Task


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Compare full steps with and without forecasts in alternating blocks of one process.

    Args:
        task: What is trained, with AdamW at the tutorial's rate.
        blocks: Pairs of blocks.
        length: Full steps of a block.

    Returns:
        ``plain_ms`` (median milliseconds of a plain full step), ``ratio`` (median over pairs of
        blocks of a step with a forecast over a plain one), ``quartiles`` of it, ``memory`` (bytes
        with and without forecasts, see `Memory`), ``traffic`` (what a forecast adds to the bytes
        read and written, per forecast parameter, see `profiling.traffic`), ``parameters`` and, on a
        CUDA device, ``waits``: what made the host wait in steady state, None if nothing did.
    """
    memory = {name: _memory(task, forecasts) for name, forecasts in _BOTH.items()}
    loop = _Loop(task, forecasts=True)
    loop.run(length)
    seconds = [(loop.run(length), loop.run(length, forecasts=False)) for _ in range(blocks)]
    ratios = [hybrid / plain for hybrid, plain in seconds]
    quartiles = statistics.quantiles(ratios, n=4) if blocks > 1 else [ratios[0]] * 3
    found = {
        "parameters": sum(p.numel() for p in loop.model.parameters()),
        "plain_ms": 1e3 * statistics.median(plain for _, plain in seconds) / length,
        "ratio": statistics.median(ratios),
        "quartiles": [quartiles[0], quartiles[2]],
        "memory": memory,
        "traffic": loop.traffic(),
        "blocks": blocks,
        "length": length,
        "threads": torch.get_num_threads(),
    }
    if loop.device.type == "cuda":
        found["waits"] = _waits(loop, length)
    loop.engine.detach()
    return found


_BOTH = {"plain": False, "hybrid": True}


class _Loop:
    """A training loop whose forecasts can be switched off for a block."""

    def __init__(self, task: Task, *, forecasts: bool) -> None:
        self._task, recipe = task, task.recipe
        self.model: nn.Module = task.model(0)
        self.device = next(self.model.parameters()).device
        self._batches = task.batches(0)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.learning_rate, betas=recipe.betas,
            weight_decay=recipe.weight_decay, fused=True,
        )  # fmt: skip
        config = HybridConfig(
            total_steps=10**9, warmup_fraction=0.0, count_flops=False, enabled=forecasts
        )
        self.engine = HybridEngine(self.model, self._optimizer, config)

    def run(self, steps: int, *, forecasts: bool = True) -> float:
        """Seconds of so many full steps, all work of the device included."""
        self._wait()
        started = perf_counter()
        for _ in range(steps):
            self.step(forecasts)
        self._wait()
        return perf_counter() - started

    def step(self, forecasts: bool) -> None:
        """One full step."""
        if forecasts:
            self.engine.before_step()
        loss = self._task.full_step(self.model, next(self._batches), self._optimizer)
        if forecasts:
            self.engine.after_step(loss)

    def traffic(self) -> dict[str, float]:
        """Bytes per forecast parameter that a forecast reads and writes, by kind of operation."""
        plain, hybrid = (traffic(partial(self.step, f)) for f in (False, True))
        sizes = dict(self.model.named_parameters())
        forecast = sum(sizes[name].numel() for name in self.engine.horizons)
        return {kind: (hybrid[kind] - plain[kind]) / forecast for kind in plain}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _memory(task: Task, forecasts: bool) -> int:
    warm(task)
    memory = Memory()
    loop = _Loop(task, forecasts=forecasts)
    loop.run(12)
    used = memory.used()
    loop.engine.detach()
    return used


def _waits(loop: _Loop, steps: int) -> str | None:
    """The complaint about the first wait of the host in so many full steps, None without one."""
    try:
        with _no_waiting():
            for _ in range(steps):
                loop.step(forecasts=True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


@contextmanager
def _no_waiting() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
