"""Cost of the plug-in in a full step: time, memory, memory traffic, synchronisation."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from benchmarks.memory import Memory
from benchmarks.tasks import Task
from benchmarks.timing import quartiles, seconds, waits
from benchmarks.train import warm
from hybrid_predict.accounts.operations import traffic
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.forecast.predictors import MomentumPredictor

_DRIFT = {"hidden": MomentumPredictor(gated=False)}
WAYS: dict[str, dict[str, Any]] = {
    "corrected": {"speedup": 1},
    "predicted": {"predictors": _DRIFT, "updates": {}},
    "both": {"predictors": _DRIFT},
}
"""Arguments of `HybridConfig` by the name of what is measured, at the default speedup."""


def measure(task: Task, blocks: int = 12, length: int = 16) -> dict[str, Any]:
    """Compare full steps with and without the plug-in, in alternating blocks of one process.

    Args:
        task: Task to train, with AdamW at its default rate.
        blocks: Number of blocks of each way.
        length: Full steps in a block.

    Returns:
        ``plain_ms`` (median milliseconds of a plain full step), ``parameters``, and for ``plain``
        and each of :data:`WAYS` by name: ``ratio`` (median over blocks of a full step, with its
        share of predicted ones, over a plain one), its ``quartiles``, ``memory`` (bytes, see
        `Memory`), ``traffic`` (bytes that the plug-in reads and writes, per parameter that is
        corrected or predicted; see `operations.traffic`) and, on a CUDA device, ``waits``: torch's
        message on the first synchronisation, None if there is none.
    """
    loops = {name: _Loop(task, options) for name, options in WAYS.items()}
    plain = _Loop(task, None)
    for loop in (plain, *loops.values()):
        loop.run(length)
    rounds = [
        {name: loop.run(length) for name, loop in (("plain", plain), *loops.items())}
        for _ in range(blocks)
    ]
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in plain.model.parameters()),
        "plain_ms": 1e3 * statistics.median(r["plain"] for r in rounds) / length,
        "blocks": blocks,
        "length": length,
        "threads": torch.get_num_threads(),
    }
    least = plain.traffic()
    for name, loop in loops.items():
        low, middle, high = quartiles([r[name] / r["plain"] for r in rounds])
        found[name] = {
            "ratio": middle,
            "quartiles": [low, high],
            "traffic": {k: (v - least[k]) / loop.followed for k, v in loop.traffic().items()},
        }
        if loop.device.type == "cuda":
            found[name]["waits"] = waits(loop.step, length)
        loop.close()
    for name, options in {"plain": None, **WAYS}.items():
        found.setdefault(name, {})["memory"] = _memory(task, options)
    return found


class _Loop:
    """A training loop, plain or with the plug-in.

    Args:
        task: Task to train.
        options: Arguments of `HybridConfig`; None trains without the plug-in.
    """

    def __init__(self, task: Task, options: dict[str, Any] | None) -> None:
        self._task, recipe = task, task.recipe
        self.model: nn.Module = task.model(0)
        self.device = next(self.model.parameters()).device
        self._batches = task.batches(0)
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.learning_rate, betas=recipe.betas,
            weight_decay=recipe.weight_decay, fused=True,
        )  # fmt: skip
        self._engine: HybridEngine | None = None
        if options is not None:
            config = HybridConfig(total_steps=10**9, warmup_steps=1, cooldown_steps=1, **options)
            self._engine = HybridEngine(self.model, self._optimizer, config)

    def run(self, steps: int) -> float:
        """Return the seconds of ``steps`` full steps; see `timing.seconds`."""
        return seconds(self.step, steps, self.device)

    def step(self) -> None:
        """Take one full step, after the predicted steps that are due."""
        if self._engine is not None:
            self._engine.before_step()
        loss = self._task.full_step(self.model, next(self._batches), self._optimizer)
        if self._engine is not None:
            self._engine.after_step(loss)

    def traffic(self) -> dict[str, float]:
        """Return the bytes that a full step reads and writes, by kind of operation; mean of two."""
        return {kind: found / 2 for kind, found in traffic(lambda: self.run(2)).items()}

    @property
    def followed(self) -> int:
        """Number of parameters that are corrected or predicted."""
        assert self._engine is not None
        kinds = zip(self._engine.mapper.parameters, self._engine.mapper.kinds, strict=True)
        return sum(p.numel() for p, kind in kinds if kind == "hidden")

    def close(self) -> None:
        """Detach the engine from the model."""
        if self._engine is not None:
            self._engine.detach()


def _memory(task: Task, options: dict[str, Any] | None) -> int:
    warm(task)
    memory = Memory()
    loop = _Loop(task, options)
    loop.run(12)
    used = memory.used()
    loop.close()
    return used
