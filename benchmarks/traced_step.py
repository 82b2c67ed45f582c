"""One full step of a GPT of three blocks, traced: what runs of the package, and what it changes.

Only public names of the package are used, so that any state of the code can be traced. It is run
by :mod:`benchmarks.house` with a speedup as its argument, and prints what it finds as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import deque
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

PACKAGE = hybrid_predict.__name__
PRODUCT = Path(hybrid_predict.__file__).parents[1]
FOLDERS = tuple(str(PRODUCT / name) for name in (PACKAGE, "integrations"))

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
    """Counts all calls, and notes which code of the package runs, as profiler of its thread.

    Calls are those of functions in Python and in C. ``classes`` have a method that was called.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.files: set[str] = set()
        self.classes: set[type] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; for ``sys.setprofile``."""
        self.calls += event in ("call", "c_call")
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(FOLDERS):
            return
        self.files.add(code.co_filename)
        if code.co_argcount and (first := code.co_varnames[0]) in ("self", "cls"):
            owner = frame.f_locals.get(first)
            cls = owner if isinstance(owner, type) else type(owner)
            if is_product(cls):
                self.classes.add(cls)


class Operations(TorchDispatchMode):
    """Counts operations on tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def is_product(cls: type) -> bool:
    """Return whether a class is defined in the package."""
    return str(cls.__module__).partition(".")[0] == PACKAGE


def holders(before: list[tuple[Any, Any]]) -> list[str]:
    """Return the classes of holders of state, objects that a step has changed.

    A holder is an object of a class of the package that exists before and after the step, with an
    attribute that differs: another number, text or object, a standard container with other content,
    or a tensor that was written to.
    """
    after = {id(held): state for held, state in snapshot()}
    changed = [held for held, state in before if after.get(id(held), state) != state]
    return sorted({type(held).__qualname__ for held in changed})


def snapshot() -> list[tuple[Any, Any]]:
    """Return every live object of a class of the package, with what its ``__dict__`` holds."""
    gc.collect()
    objects = [held for held in gc.get_objects() if is_product(type(held))]
    return [(held, _content(getattr(held, "__dict__", {}))) for held in objects]


def _content(value: Any) -> Any:
    """Return what tells a value from another, and keeps its object alive."""
    if isinstance(value, torch.Tensor):
        return _Same(value), value._version
    if isinstance(value, dict):
        return [(_content(k), _content(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [_content(each) for each in value]
    return value if isinstance(value, (int, float, str)) and value == value else _Same(value)


class _Same:
    """Equal to itself and to another around the same object."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


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
    steps = loop(speedup)
    list(islice(steps, WARM))
    changed = []
    for _ in range(9):  # steps differ: some close a window of forecasts
        before = snapshot()
        next(steps)
        changed.append(holders(before))
    tracer, operations = counted(speedup)
    plain, plain_operations = counted(None)
    modules = [module for name, module in sys.modules.items() if name.startswith(PACKAGE)]
    return {
        "files": sorted(Path(name).relative_to(PRODUCT).as_posix() for name in tracer.files),
        "classes": sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in tracer.classes),
        "holders": sorted(changed, key=len)[len(changed) // 2],
        "calls": round((tracer.calls - plain.calls) / COUNTED),
        "operations": round((operations.count - plain_operations.count) / COUNTED),
        "loaded": sorted(module.__file__ for module in modules if module.__file__),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(trace(float(sys.argv[1]))))
