"""Measures the cost of corrected updates and predicted steps relative to AdamW's update.

Run with: python -m benchmarks.update_cost > docs/results/step_cost.json
"""

from __future__ import annotations

import itertools
import json
import platform
import statistics
from collections.abc import Callable
from importlib.metadata import version
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from benchmarks.measure import Loop, middle, take_turns
from benchmarks.memory import held
from hybrid_predict import MomentumPredictor
from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.torch.cost import Watching

SIZES = {"1M": (4, 144), "10M": (6, 384)}
"""Blocks and width of a stack of matrices, by its approximate number of parameters."""

ROUNDS = {"1M": 10, "10M": 4}
LENGTH = 10
"""Full steps in a block; roots are found in every fifth."""

_PREDICTED = {"speedup": 2, "predictors": {"hidden": MomentumPredictor(gated=False)}}
MECHANISMS: dict[str, dict[str, Any]] = {
    "corrected": {"speedup": 1},
    "predicted": {**_PREDICTED, "updates": {}},
    "corrected + predicted": _PREDICTED,
}
"""Arguments of `HybridConfig` by mechanism; predicted steps come before every full step."""


def stack(blocks: int, width: int) -> nn.Module:
    """Return the hidden matrices of a transformer: four per block, 12 width² parameters."""
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return nn.ModuleList(nn.Linear(i, o, bias=False) for _ in range(blocks) for i, o in shapes)


class Updates(Loop):
    """Full steps with constant gradients: the fused AdamW update, alone or with an engine."""

    def __init__(
        self, mechanism: str | None, size: str, history: str = "float32", device: str = "cpu"
    ) -> None:
        torch.manual_seed(0)
        self.model = stack(*SIZES[size]).to(device)
        for p in self.model.parameters():
            p.grad = torch.randn_like(p)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self._loss = torch.ones((), device=device)
        options = mechanism and {
            "history_dtype": history, "kinds": {"*": "hidden"}, "max_overhead": 1e9,
            **MECHANISMS[mechanism],
        }  # fmt: skip
        super().__init__(self.model, self.optimizer, options or None, torch.device(device))

    def full_step(self) -> Tensor:
        """Update by the same gradients as always; return a loss that says nothing."""
        self.optimizer.step()
        return self._loss

    def passes(self) -> dict[str, float]:
        """Return memory traffic of a full step, by operation, in 32-bit buffers of parameters."""
        moved = traffic(lambda: self.run(LENGTH))
        return {key: bytes_ / 4 / self.parameters / LENGTH for key, bytes_ in moved.items()}

    def copy_seconds(self) -> float:
        """Return the seconds to read or write such a buffer: half of a copy."""
        source = [torch.randn_like(p) for p in self.model.parameters()]
        target = [torch.empty_like(p) for p in self.model.parameters()]
        times = []
        for _ in range(12):
            started = process_time()
            torch._foreach_copy_(target, source)
            times.append(process_time() - started)
        return statistics.median(times) / 2


def measure(mechanism: str, size: str, history: str) -> dict[str, Any]:
    """Measure the cost that a mechanism adds to the fused AdamW update, in alternating blocks.

    ``ratio`` is the time added over that of the update alone, with ``quartiles`` over pairs of
    blocks; ``passes`` are added ones, see :meth:`Updates.passes`.
    """
    loops = {"alone": Updates(None, size), mechanism: Updates(mechanism, size, history)}
    alone, more = loops.values()
    rounds = take_turns(loops, ROUNDS[size], LENGTH)
    added = [results[mechanism] - results["alone"] for results in rounds]
    per_step, least = 1e9 / LENGTH / alone.parameters, alone.passes()
    assert more.engine is not None
    results = {
        "mechanism": mechanism,
        "history": history,
        "parameters": alone.parameters,
        "ms_per_million_parameters": per_step * statistics.median(added),
        "adamw_ms_per_million_parameters": per_step * statistics.median(r["alone"] for r in rounds),
        **middle([a / r["alone"] for a, r in zip(added, rounds, strict=True)]),
        "bytes_per_parameter": held(more.engine, more.model, more.optimizer) / more.parameters,
        "passes": {key: n - least[key] for key, n in more.passes().items()},
        "copy_ms_per_million_parameters": 1e9 * more.copy_seconds() / more.parameters,
    }
    more.close()
    return results


_ONLY_WRITTEN = ("copy_", "_foreach_copy_", "zero_", "fill_")
_UNMOVED = ("empty", "empty_like", "new_empty", "empty_strided", "_unsafe_view")
_SHAPED = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_full")


def traffic(run: Callable[[], object]) -> dict[str, int]:
    """Count the bytes that a function's operations read and write, as if no cache kept any of them.

    ``products`` are those of matrix products with each operand counted once, ``others`` those of
    all other operations. Views and allocations count zero.
    """
    totals = {"products": 0, "others": 0}

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        which = "products" if func._overloadpacket in flop_registry else "others"
        totals[which] += _moved(func, args, kwargs, result)

    with Watching(see):
        run()
    return totals


def _moved(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes that one operation reads and writes, from its schema."""
    name, schema = func._overloadpacket.__name__, func._schema
    given = list(zip(schema.arguments, args, strict=False))
    given += [(a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs]
    written = [a.alias_info is not None and a.alias_info.is_write for a, _ in given]
    if name in _UNMOVED or (func.is_view and not any(written)):
        return 0
    total = 0
    for (argument, value), writes in zip(given, written, strict=True):
        unread = name in _SHAPED or (writes and (argument.is_out or name in _ONLY_WRITTEN))
        total += (writes + (not unread)) * _bytes(value)
    fresh = all(r.alias_info is None for r in schema.returns)
    return total + (_bytes(result) if fresh else 0)


def _bytes(value: Any) -> int:
    """Bytes of all tensors in an argument or a result, at most the size of their storage."""
    if isinstance(value, Tensor):
        return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


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
