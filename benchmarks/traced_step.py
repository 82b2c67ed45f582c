"""One full step of a GPT of three blocks: what the package adds to it, and what it loads.

Only public names of the package are used, so that any state of the code can be traced. It is run
by :mod:`benchmarks.house` with a speedup as its argument, and prints what it finds as JSON.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.tasks.language import ByteGPT
from hybrid_predict import HybridConfig, HybridEngine

PACKAGE = "hybrid_predict"

WARM, COUNTED = 60, 20
"""Full steps before anything is counted, and those that are counted."""


class Loop:
    """A plain loop, with the engine and its defaults if there is a speedup."""

    def __init__(self, speedup: float | None) -> None:
        torch.manual_seed(0)
        self.model = ByteGPT(layers=3, heads=2, width=64, context=64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = cycle(torch.randint(256, (16, 16, 65)))
        self.engine: HybridEngine | None = None
        if speedup is not None:
            length: Any = {"total_steps": 10**6, "warmup_steps": 10, "cooldown_steps": 0}
            config = HybridConfig(speedup=speedup, **length)
            self.engine = HybridEngine(self.model, self.optimizer, config)

    def step(self) -> None:
        """Take one full step, after the predicted steps that are due."""
        if self.engine is not None:
            self.engine.before_step()
        tokens = next(self.batches)
        logits = self.model(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.engine is not None:
            self.engine.after_step(loss)


class Operations(TorchDispatchMode):
    """Counts operations on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(speedup: float | None) -> tuple[int, int]:
    """Return the calls of full steps, of functions in Python and in C, and the operations.

    These are of as many further steps: to count them takes calls.
    """
    loop = Loop(speedup)
    for _ in range(WARM):
        loop.step()
    calls = 0

    def note(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    for _ in range(COUNTED):
        loop.step()
    sys.setprofile(None)
    with Operations() as operations:
        for _ in range(COUNTED):
            loop.step()
    return calls, operations.count


def trace(speedup: float) -> dict[str, Any]:
    """Trace full steps; own calls and operations are those beside a plain loop's, per full step."""
    plain_calls, plain_operations = counted(None)
    calls, operations = counted(speedup)
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == PACKAGE]
    return {
        "calls": round((calls - plain_calls) / COUNTED),
        "operations": round((operations - plain_operations) / COUNTED),
        "loaded": sorted(module.__file__ for module in modules if module.__file__),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(trace(float(sys.argv[1]))))
