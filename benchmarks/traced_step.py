"""One step of the engine, traced, and the processor time that the plug-in adds to a step.

The loop is plain torch: a perceptron of four layers of width 64, AdamW, and predicted steps by an
ungated average, one before each full step. Prints the numbers of the `hybrid_predict` that Python
finds, as JSON; only its public names are used, so that any state of the code can be measured.

Run with: python -m benchmarks.traced_step
"""

from __future__ import annotations

import gc
import json
import sys
from collections import deque
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import hybrid_predict
from benchmarks.measure import Loop, take_turns
from hybrid_predict import MomentumPredictor

PRODUCT = Path(hybrid_predict.__file__).parent

WIDTH, BATCH, RATE, WARM = 64, 128, 1e-5, 60
"""Width of a layer, rows of a batch, learning rate, and full steps before anything is measured.

The rate is so small that forecasts go downhill for as long as the loop is timed.
"""

_LONG = {"total_steps": 10**6, "warmup_steps": 10, "cooldown_steps": 0}
_PREDICTED = {"speedup": 2, "predictors": {"hidden": MomentumPredictor(gated=False)}}

WAYS: dict[str, dict[str, Any]] = {
    "corrected": {**_LONG, "speedup": 1},
    "predicted": {**_LONG, **_PREDICTED},
}


class PerceptronLoop(Loop):
    """A training loop on random rows."""

    def __init__(self, options: dict[str, Any] | None) -> None:
        torch.manual_seed(0)
        hidden = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model = nn.Sequential(*hidden, nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE)
        self.batches = cycle(torch.randn(16, BATCH, WIDTH))
        super().__init__(self.model, self.optimizer, options, torch.device("cpu"))

    def full_step(self) -> torch.Tensor:
        """Learn the sum of each row."""
        x = next(self.batches)
        loss: torch.Tensor = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Tracer:
    """Notes which code of the product runs while it is the profiler of its thread.

    ``files`` are those of each call in order; resuming a generator is a call. ``classes`` have a
    method that was called. Comprehensions are no functions.
    """

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.classes: set[type] = set()
        self.files: list[str] = []

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; for ``sys.setprofile``."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PRODUCT)):
            return
        self.files.append(code.co_filename)
        if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
            return
        self.functions.add(code)
        if code.co_argcount and (first := code.co_varnames[0]) in ("self", "cls"):
            owner = frame.f_locals.get(first)
            cls = owner if isinstance(owner, type) else type(owner)
            if is_product(cls):
                self.classes.add(cls)


def is_product(cls: type) -> bool:
    """Return whether a class is defined in the product."""
    return str(cls.__module__).partition(".")[0] == hybrid_predict.__name__


def holders(before: list[tuple[Any, Any]]) -> list[str]:
    """Return the class of each holder of state, an object that a step has changed.

    A holder is an object of a product class that exists before and after the step, with an
    attribute that differs: another number, text or object, a standard container with other content,
    or a tensor that was written to. Variables of closures and of suspended generators are not
    counted.
    """
    after = {id(held): state for held, state in snapshot()}
    return sorted(
        type(held).__qualname__
        for held, state in before
        if id(held) in after and after[id(held)] != state
    )


def snapshot() -> list[tuple[Any, Any]]:
    """Return every live object of a product class, with what its attributes hold."""
    gc.collect()
    objects = [held for held in gc.get_objects() if is_product(type(held))]
    return [
        (held, {name: _content(value) for name, value in _attributes(held)}) for held in objects
    ]


def _attributes(held: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(held, "__dict__", {}).items()
    for cls in type(held).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(held, name):
                yield name, getattr(held, name)


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


def trace() -> dict[str, Any]:
    """Trace one full step that has one predicted step before it."""
    loop = PerceptronLoop(WAYS["predicted"])
    loop.run(WARM)
    for _ in range(20):
        before, tracer = snapshot(), Tracer()
        sys.setprofile(tracer.note)
        ticks = loop.step()
        sys.setprofile(None)
        if ticks == 2:
            break
    else:
        raise RuntimeError("no full step had a predicted step before it")
    return {
        "files": sorted({_inside(name) for name in tracer.files}),
        "classes": sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in tracer.classes),
        "functions": sorted(
            f"{_inside(code.co_filename)}:{code.co_firstlineno} {code.co_name}"
            for code in tracer.functions
        ),
        "holders": holders(before),
        "changes_of_file": sum(
            one != other for one, other in zip(tracer.files, tracer.files[1:], strict=False)
        ),
    }


def _inside(name: str) -> str:
    return Path(name).relative_to(PRODUCT).as_posix()


def added(rounds: int = 40, length: int = 50) -> dict[str, Any]:
    """Measure the processor time that the plug-in adds to a full step, on one thread.

    Microseconds per full step from the fastest block of each loop: ``plain``, and what the loop of
    each of :data:`WAYS` takes more. ``ticks`` of the last step are 2 unless predicted steps ended.
    """
    torch.set_num_threads(1)
    loops = {way: PerceptronLoop(options) for way, options in {"plain": None, **WAYS}.items()}
    for loop in loops.values():
        loop.run(WARM)
    blocks = take_turns(loops, rounds, length)
    least = {way: 1e6 * min(block[way] for block in blocks) / length for way in loops}
    times = {way: round(least[way] - least["plain"], 1) for way in WAYS}
    ticks = loops["predicted"].step()
    return {"plain": round(least["plain"], 1), **times, "ticks": ticks}


if __name__ == "__main__":
    print(json.dumps({"step": trace(), "microseconds": added()}))
