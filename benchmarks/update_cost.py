"""Measures the cost of corrected updates and predicted steps relative to AdamW's update.

Run with: python -m benchmarks.update_cost > docs/results/step_cost.json
"""

from __future__ import annotations

import itertools
import json
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from time import process_time
from typing import Any

import torch
from torch import nn

from benchmarks.memory import held
from benchmarks.timing import quartiles, seconds
from hybrid_predict.torch.cost import traffic
from hybrid_predict.config import HISTORY_DTYPES, HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.forecast.predictors import MomentumPredictor

SIZES = {"1M": (4, 144), "10M": (6, 384)}
"""Blocks and width of a stack of matrices, by its approximate number of parameters."""

ROUNDS = {"1M": 10, "10M": 4}
LENGTH = 10
"""Full steps in a block: whitened updates compute roots in every tenth."""

_PREDICTED = {"speedup": 2, "predictors": {"hidden": MomentumPredictor(gated=False)}}
MECHANISMS: dict[str, dict[str, Any]] = {
    "corrected": {"speedup": 1},
    "whitened": {"speedup": 1, "updates": {"hidden": "whitened"}},
    "predicted": {**_PREDICTED, "updates": {}},
    "corrected + predicted": _PREDICTED,
}
"""Arguments of `HybridConfig` by mechanism; predicted steps come before every full step."""


def stack(blocks: int, width: int) -> nn.Module:
    """Return the hidden matrices of a transformer: four per block, 12 width² parameters."""
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return nn.ModuleList(nn.Linear(i, o, bias=False) for _ in range(blocks) for i, o in shapes)


class Steps:
    """Full steps with constant gradients: the fused AdamW update, alone or with an engine.

    Args:
        mechanism: One of :data:`MECHANISMS`, for all parameters; None for the update alone.
        size: One of :data:`SIZES`.
        history: ``history_dtype`` of the configuration.
        device: Device to compute on.
    """

    def __init__(
        self, mechanism: str | None, size: str, history: str = "float32", device: str = "cpu"
    ) -> None:
        torch.manual_seed(0)
        self._device = torch.device(device)
        model = stack(*SIZES[size]).to(self._device)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        self._shapes = list(model.parameters())
        self.parameters = sum(p.numel() for p in self._shapes)
        self._loss = torch.ones((), device=self._device)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        self._engine: HybridEngine | None = None
        if mechanism is not None:
            config = HybridConfig(
                total_steps=10**9, warmup_steps=1, cooldown_steps=1, history_dtype=history,
                kinds={"*": "hidden"}, max_overhead=1e9, **MECHANISMS[mechanism],
            )  # fmt: skip
            self._engine = HybridEngine(model, self._optimizer, config)
        self.seconds()
        self.bytes = held(self._engine, model, self._optimizer) if self._engine else 0

    def seconds(self) -> float:
        """Return the seconds of a block of full steps; see `timing.seconds`."""
        return seconds(self.step, LENGTH, self._device)

    def step(self) -> None:
        """Take one full step, after the predicted step that is due."""
        if self._engine is not None:
            self._engine.before_step()
        self._optimizer.step()
        if self._engine is not None:
            self._engine.after_step(self._loss)

    def passes(self) -> dict[str, float]:
        """Return memory traffic of a full step, by operation, in 32-bit buffers of parameters."""
        moved = traffic(self._block)
        return {key: bytes_ / 4 / self.parameters / LENGTH for key, bytes_ in moved.items()}

    def _block(self) -> None:
        for _ in range(LENGTH):
            self.step()

    def copy_seconds(self) -> float:
        """Return the seconds to read or write such a buffer: half of a copy."""
        source = [torch.randn_like(p) for p in self._shapes]
        target = [torch.empty_like(p) for p in self._shapes]
        times = []
        for _ in range(12):
            started = process_time()
            torch._foreach_copy_(target, source)
            times.append(process_time() - started)
        return statistics.median(times) / 2

    def close(self) -> None:
        """Detach the engine from the parameters."""
        if self._engine is not None:
            self._engine.detach()


def measure(mechanism: str, size: str, history: str) -> dict[str, Any]:
    """Measure the cost that a mechanism adds to the fused AdamW update, in alternating blocks.

    Args:
        mechanism: One of :data:`MECHANISMS`.
        size: One of :data:`SIZES`.
        history: ``history_dtype`` of the configuration.

    Returns:
        ``ms_per_million_parameters``, the time added to a full step; ``ratio`` of it to the update
        alone, with ``quartiles`` over pairs of blocks; ``adamw_ms_per_million_parameters``;
        ``bytes_per_parameter`` held by the engine; ``passes`` added, see :meth:`Steps.passes`; and
        ``copy_ms_per_million_parameters`` of one such pass.
    """
    alone, steps = Steps(None, size), Steps(mechanism, size, history)
    pairs = [(alone.seconds(), steps.seconds()) for _ in range(ROUNDS[size])]
    least = alone.passes()
    found = {
        "mechanism": mechanism,
        "history": history,
        **_summary(pairs, steps.parameters),
        "bytes_per_parameter": steps.bytes / steps.parameters,
        "passes": {key: n - least[key] for key, n in steps.passes().items()},
        "copy_ms_per_million_parameters": 1e9 * steps.copy_seconds() / steps.parameters,
    }
    steps.close()
    return found


def _summary(pairs: Sequence[tuple[float, float]], parameters: int) -> dict[str, Any]:
    added = [more - plain for plain, more in pairs]
    ratios = [a / plain for (plain, _), a in zip(pairs, added, strict=True)]
    low, middle, high = quartiles(ratios)
    per_step = 1e9 / LENGTH / parameters
    return {
        "parameters": parameters,
        "ms_per_million_parameters": per_step * statistics.median(added),
        "adamw_ms_per_million_parameters": per_step * statistics.median(p for p, _ in pairs),
        "ratio": middle,
        "quartiles": [low, high],
    }


def main() -> dict[str, Any]:
    """Measure every mechanism at every size with either history, on one thread."""
    torch.set_num_threads(1)
    cells = itertools.product(MECHANISMS, SIZES, HISTORY_DTYPES)
    return {
        "threads": torch.get_num_threads(),
        "rounds": ROUNDS,
        "length": LENGTH,
        "clock": "process",
        "rows": [measure(*cell) for cell in cells],
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
