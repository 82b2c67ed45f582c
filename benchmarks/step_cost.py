"""Cost of the plug-in in a full step: time, memory, synchronisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Loop, Memory, milliseconds, ratio, take_turns, waits
from benchmarks.tasks import Task
from benchmarks.train import warm
from hybrid_predict import MomentumPredictor

_DRIFT = {"hidden": MomentumPredictor(gated=False)}
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "corrected": {"speedup": 1},
    "predicted": {"predictors": _DRIFT, "updates": {}},
    "both": {"predictors": _DRIFT},
}
"""Arguments of `HybridConfig` by the name of what is measured, at the default speedup."""

ADDED = tuple(way for way, options in WAYS.items() if options is not None)


class TaskLoop(Loop):
    """A loop over a task's batches."""

    def __init__(self, task: Task, options: dict[str, Any] | None) -> None:
        recipe = task.recipe
        self._task = task
        self.model: nn.Module = task.model(0)
        self._batches = task.batches(0)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=recipe.learning_rate,
            betas=recipe.betas,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        device = next(self.model.parameters()).device
        super().__init__(self.model, self._optimizer, options, device)

    def full_step(self) -> Tensor:
        """Take one full step of the task; return its loss."""
        return self._task.full_step(self.model, next(self._batches), self._optimizer)


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Measure time, memory (bytes) and, on a CUDA device, waits of each of :data:`WAYS`."""
    loops = {way: TaskLoop(task, options) for way, options in WAYS.items()}
    rounds = take_turns(loops, blocks, length)
    results: dict[str, Any] = {
        "parameters": sum(p.numel() for p in loops["plain"].model.parameters()),
        "plain_ms": milliseconds(rounds, "plain", length),
        **{way: ratio(rounds, way, "plain") for way in ADDED},
        "blocks": blocks,
        "length": length,
        "threads": torch.get_num_threads(),
        "plain": {},
    }
    for way in ADDED:
        loop = loops[way]
        if loop.device.type == "cuda":
            results[way]["waits"] = waits(loop.step, length)
        loop.close()
    for way in WAYS:
        results[way]["memory"] = memory(task, way)
    return results


def memory(task: Task, way: str) -> int:
    """Return the bytes that twelve full steps of one of :data:`WAYS` take; see `Memory`."""
    warm(task)
    counter = Memory()
    loop = TaskLoop(task, WAYS[way])
    loop.run(12)
    used = counter.used()
    loop.close()
    return used
