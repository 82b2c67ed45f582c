"""Cost of the plug-in in a full step: time, memory, synchronisation."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Loop, Memory, ratio, take_turns, waits
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


def loop_of(task: Task, options: dict[str, Any] | None) -> Loop:
    """Return a loop over a task's batches."""
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

    return Loop(model, optimizer, full_step, options)


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Measure time, memory (bytes) and, on a CUDA device, waits of each of :data:`WAYS`."""
    loops = {way: loop_of(task, options) for way, options in WAYS.items()}
    rounds = take_turns(loops, blocks, length)
    plain = statistics.median(seconds["plain"] for seconds in rounds) / length
    results: dict[str, Any] = {
        "parameters": sum(p.numel() for p in task.model(0).parameters()),
        "plain_ms": 1e3 * plain,
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
    loop = loop_of(task, WAYS[way])
    loop.run(12)
    used = counter.used()
    loop.close()
    return used
