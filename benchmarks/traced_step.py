"""One full step of a GPT of three blocks, traced: what runs of the package.

Only public names of the package are used, so that any state of the code can be traced. It is run
by :mod:`benchmarks.house` with a speedup as its argument, and prints what it finds as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hybrid_predict
from benchmarks.tasks.language import ByteGPT
from hybrid_predict import HybridConfig, HybridEngine

PRODUCT = Path(hybrid_predict.__file__).parents[1]
FOLDERS = tuple(str(PRODUCT / name) for name in ("hybrid_predict", "integrations"))

WARM, COUNTED = 60, 20
"""Full steps before anything is counted, and those that are counted."""


def loop(speedup: float | None) -> Iterator[None]:
    """Take full steps of a plain loop, with the engine and its defaults if there is a speedup."""
    torch.manual_seed(0)
    model = ByteGPT(layers=3, heads=2, width=64, context=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine: HybridEngine | None = None
    if speedup is not None:
        length: Any = {"total_steps": 10**6, "warmup_steps": 10, "cooldown_steps": 0}
        engine = HybridEngine(model, optimizer, HybridConfig(speedup=speedup, **length))
    for tokens in cycle(torch.randint(256, (16, 16, 65))):
        if engine is not None:
            engine.before_step()
        logits = model(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if engine is not None:
            engine.after_step(loss)
        yield


class Tracer:
    """Counts calls of functions in Python and in C, and notes the package's files that run."""

    def __init__(self) -> None:
        self.calls = 0
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; for ``sys.setprofile``."""
        self.calls += event in ("call", "c_call")
        if event == "call" and frame.f_code.co_filename.startswith(FOLDERS):
            self.files.add(frame.f_code.co_filename)


class Operations(TorchDispatchMode):
    """Counts operations on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def counted(speedup: float | None) -> tuple[Tracer, Operations]:
    """Return what a profiler sees in full steps, and what as many others do with tensors."""
    steps = loop(speedup)
    list(islice(steps, WARM))
    tracer = Tracer()
    sys.setprofile(tracer.note)
    list(islice(steps, COUNTED))
    sys.setprofile(None)
    with Operations() as operations:
        list(islice(steps, COUNTED))
    return tracer, operations


def trace(speedup: float) -> dict[str, Any]:
    """Trace full steps; own calls and operations are those beside a plain loop's, per full step."""
    tracer, operations = counted(speedup)
    plain, plain_operations = counted(None)
    modules = [module for name, module in sys.modules.items() if name.startswith("hybrid_predict")]
    return {
        "files": sorted(Path(name).relative_to(PRODUCT).as_posix() for name in tracer.files),
        "calls": round((tracer.calls - plain.calls) / COUNTED),
        "operations": round((operations.count - plain_operations.count) / COUNTED),
        "loaded": sorted(module.__file__ for module in modules if module.__file__),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(trace(float(sys.argv[1]))))
