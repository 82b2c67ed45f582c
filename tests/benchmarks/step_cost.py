"""Measures what forecasts cost in themselves: time, memory, and traffic, beside the update's.

Run with: python tests/benchmarks/step_cost.py > docs/results/step_cost.json
"""

from __future__ import annotations

import gc
import itertools
import json
import platform
import re
import statistics
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict import HybridConfig, HybridEngine, Phase
from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.predictors import PREDICTORS
from hybrid_predict.profiling import traffic

CARDS = Path(__file__).parents[2] / "docs" / "method_cards"
SIZES = {"1M": (4, 144), "10M": (6, 384)}
"""Blocks and width of the stacks of matrices, about as many parameters as their names say."""

ROUNDS = {"1M": 16, "10M": 6}
LENGTH = 4
"""Full steps of a block."""


def stack(blocks: int, width: int) -> nn.Module:
    """The hidden matrices of a transformer: 12 width² parameters in four matrices per block."""
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return nn.ModuleList(nn.Linear(i, o, bias=False) for _ in range(blocks) for i, o in shapes)


def buffers(predictor: str, history: str = "float32") -> float:
    """32-bit buffers over the forecast parameters that a predictor's method card documents."""
    card = (CARDS / f"{predictor}.md").read_text(encoding="utf-8")
    found = re.search(r"\b(one|two|three) buffers? over the forecast parameters", card, re.I)
    assert found is not None, f"the method card of {predictor} documents no memory"
    number = ("one", "two", "three").index(found[1].lower()) + 1
    return number if history == "float32" else number / 2


def held(engine: HybridEngine, model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of the tensors that an engine reaches, without the run's own.

    Counting from the engine is exact wherever tensors live and whatever else the process holds.

    Args:
        engine: The engine, between two full steps.
        model: Its model; parameters are the run's own.
        optimizer: Its optimizer; the state is the run's own.
    """
    borders = (type, ModuleType, nn.Module, Optimizer)
    state = [v for entry in optimizer.state.values() for v in entry.values()]
    own = {_address(x) for x in (*model.parameters(), *state) if isinstance(x, Tensor)}
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    queue: list[Any] = [engine]
    while queue:
        x = queue.pop()
        if id(x) in seen or isinstance(x, borders):
            continue
        seen.add(id(x))
        if isinstance(x, Tensor):
            sizes[_address(x)] = x.untyped_storage().nbytes()
        elif isinstance(x, FunctionType):
            queue += x.__closure__ or ()  # its globals are everybody's
        else:
            queue += gc.get_referents(x)
    return sum(size for address, size in sizes.items() if address not in own)


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Steps:
    """Full steps on preset gradients: the fused AdamW update alone, or with a forecast around it.

    Args:
        predictor: Registered name of the predictor of all parameters.
        size: One of `SIZES`.
        device: Where to compute.
        history: How the predictor's history is stored.
    """

    def __init__(
        self, predictor: str, size: str, device: str = "cpu", history: str = "float32"
    ) -> None:
        torch.manual_seed(0)
        self._device = torch.device(device)
        model = stack(*SIZES[size]).to(self._device)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        self._parameters = list(model.parameters())
        self.tensors = len(self._parameters)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._loss = torch.ones((), device=self._device)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        config = HybridConfig(
            total_steps=10**9, warmup_fraction=0.0, count_flops=False, history_dtype=history,
            predictors={"hidden": predictor}, kinds={"*": "hidden"},
        )  # fmt: skip
        self.engine = HybridEngine(model, self._optimizer, config)
        self.seconds()
        self.bytes = held(self.engine, model, self._optimizer)

    def seconds(self, *, forecasts: bool = True) -> float:
        """Seconds that a block of steps takes: processor time, or wall time with a device."""
        clock = process_time if self._device.type == "cpu" else perf_counter
        self._wait()
        started = clock()
        for _ in range(LENGTH):
            self._step(forecasts)
        self._wait()
        return clock() - started

    def _step(self, forecasts: bool) -> None:
        if forecasts:
            self.engine.before_step()
        self._optimizer.step()
        if forecasts:
            record = self.engine.after_step(self._loss)
            assert record.phase is not Phase.PREDICT or record.horizon > 0

    def passes(self) -> dict[str, float]:
        """Reads and writes of a 32-bit buffer over the parameters that a forecast adds to a step.

        Those of matrix products, and of all other operations.
        """
        plain, hybrid = (traffic(partial(self._step, f)) for f in (False, True))
        return {key: (hybrid[key] - plain[key]) / 4 / self.parameters for key in plain}

    def copy_seconds(self) -> float:
        """Seconds of a pass: half a plain copy of 32-bit parameters."""
        source = [torch.randn_like(p) for p in self._parameters]
        target = [torch.empty_like(p) for p in self._parameters]
        times = []
        for _ in range(12):
            started = process_time()
            torch._foreach_copy_(target, source)
            times.append(process_time() - started)
        return statistics.median(times) / 2

    def summary(self, plain: Sequence[float], hybrid: Sequence[float]) -> dict[str, Any]:
        """The cost of a forecast from pairs of blocks, without and with forecasts.

        Args:
            plain: Seconds of the blocks of updates alone.
            hybrid: Seconds of the blocks with forecasts that follow each of them.

        Returns:
            ``ms_per_million_parameters`` that a forecast adds to a step (the same number is
            nanoseconds per parameter), ``ratio`` of that to the update alone and its
            ``quartiles`` over pairs, ``adamw_ms_per_million_parameters``, and
            ``bytes_per_parameter``.
        """
        added = [h - p for p, h in zip(plain, hybrid, strict=True)]
        ratios = [a / p for p, a in zip(plain, added, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
        per_step = 1e9 / LENGTH / self.parameters
        return {
            "parameters": self.parameters,
            "ms_per_million_parameters": per_step * statistics.median(added),
            "adamw_ms_per_million_parameters": per_step * statistics.median(plain),
            "ratio": middle,
            "quartiles": [low, high],
            "bytes_per_parameter": self.bytes / self.parameters,
        }

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure(predictor: str, size: str, history: str) -> dict[str, Any]:
    """A predictor's cost on the CPU, from alternating blocks."""
    steps = Steps(predictor, size, history=history)
    pairs = [(steps.seconds(forecasts=False), steps.seconds()) for _ in range(ROUNDS[size])]
    return {
        "predictor": predictor,
        "history": history,
        **steps.summary(*zip(*pairs, strict=True)),
        "passes": steps.passes(),
        "copy_ms_per_million_parameters": 1e9 * steps.copy_seconds() / steps.parameters,
    }


def main() -> dict[str, Any]:
    """Every predictor at every size with either history, in one thread."""
    torch.set_num_threads(1)
    cells = itertools.product(PREDICTORS, SIZES, HISTORY_DTYPES)
    return {
        "threads": torch.get_num_threads(),
        "rounds": ROUNDS,
        "length": LENGTH,
        "clock": "process",
        "rows": [measure(*cell) for cell in cells],
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "hybrid_predict": version("hybrid_predict"),
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
