"""What the plug-in costs at 124 M parameters: time, memory, and waits of the host."""

from __future__ import annotations

from typing import Any

from benchmarks.step_cost import WAYS, Loop, memory, take_turns
from benchmarks.tasks import Task
from benchmarks.timing import waits


def step_time(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Full steps with and without the plug-in, in alternating blocks of one process.

    Args:
        task: What is trained.
        blocks: Blocks of each way.
        length: Full steps of a block.

    Returns:
        What `step_cost.take_turns` does.
    """
    plain, loops = Loop(task, None), _loops(task)
    for loop in (plain, *loops.values()):
        loop.run(length)
    found = take_turns(plain, loops, blocks, length)
    for loop in loops.values():
        loop.close()
    return found


def memories(task: Task) -> dict[str, Any]:
    """Bytes of twelve full steps, plain and with the plug-in, by name of the way."""
    return {name: memory(task, options) for name, options in {"plain": None, **WAYS}.items()}


def syncs(task: Task, steps: int = 64) -> dict[str, Any]:
    """What first made the host wait for the device in so many full steps, None if nothing did.

    Under ``torch.cuda.set_sync_debug_mode("error")``, after as many steps without it.

    Args:
        task: What is trained.
        steps: Full steps.
    """
    found: dict[str, Any] = {}
    for name, loop in {"plain": Loop(task, None), **_loops(task)}.items():
        loop.run(steps)
        found[name] = waits(loop.step, steps)
        loop.close()
    return found


def _loops(task: Task) -> dict[str, Loop]:
    return {name: Loop(task, options) for name, options in WAYS.items()}
