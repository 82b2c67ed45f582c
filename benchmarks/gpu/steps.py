"""What the plug-in costs at 124 M parameters: time, memory, and waits of the host."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import waits
from benchmarks.step_cost import WAYS, TaskLoop, memory, times
from benchmarks.tasks import Task


def step_time(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Time full steps with and without the plug-in; see `step_cost.times`."""
    loops = {way: TaskLoop(task, options) for way, options in WAYS.items()}
    found = times(loops, blocks, length)
    for loop in loops.values():
        loop.close()
    return found


def memories(task: Task) -> dict[str, Any]:
    """Return the bytes of twelve full steps by way; see `step_cost.memory`."""
    return {way: memory(task, way) for way in WAYS}


def syncs(task: Task, steps: int = 64) -> dict[str, Any]:
    """Return what first made the host wait for the device, by way; None if nothing did.

    Args:
        task: What is trained.
        steps: Full steps to look at, after as many others.
    """
    found: dict[str, Any] = {}
    for way, options in WAYS.items():
        loop = TaskLoop(task, options)
        loop.run(steps)
        found[way] = waits(loop.step, steps)
        loop.close()
    return found
