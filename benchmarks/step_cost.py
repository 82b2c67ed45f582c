"""Cost of the plug-in in a full step: time, memory, memory traffic, synchronisation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.memory import Memory
from benchmarks.optimizers import Build, Rates
from benchmarks.peers.around import AroundOptimizers
from benchmarks.tasks import Recipe, Task
from benchmarks.timing import quartiles, seconds, waits
from benchmarks.train import warm
from hybrid_predict.torch.cost import traffic
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
    loops = {name: Loop(task, options) for name, options in WAYS.items()}
    plain = Loop(task, None)
    for loop in (plain, *loops.values()):
        loop.run(length)
    found: dict[str, Any] = {
        "parameters": sum(p.numel() for p in plain.model.parameters()),
        **take_turns(plain, loops, blocks, length),
        "blocks": blocks,
        "length": length,
        "threads": torch.get_num_threads(),
    }
    least = plain.traffic()
    for name, loop in loops.items():
        found[name]["traffic"] = {
            k: (v - least[k]) / loop.followed for k, v in loop.traffic().items()
        }
        if loop.device.type == "cuda":
            found[name]["waits"] = waits(loop.step, length)
        loop.close()
    for name, options in {"plain": None, **WAYS}.items():
        found.setdefault(name, {})["memory"] = memory(task, options)
    return found


def take_turns(plain: Loop, loops: Mapping[str, Loop], blocks: int, length: int) -> dict[str, Any]:
    """Time loops in alternating blocks.

    Args:
        plain: What the others are compared with.
        loops: The others by name.
        blocks: Blocks of each loop.
        length: Full steps of a block.

    Returns:
        ``plain_ms`` (median milliseconds of a plain full step) and, by name, ``ratio`` (median over
        blocks of a full step over a plain one) with its ``quartiles``.
    """
    rounds = [
        (plain.run(length), {name: loop.run(length) for name, loop in loops.items()})
        for _ in range(blocks)
    ]
    found: dict[str, Any] = {
        "plain_ms": 1e3 * statistics.median(least for least, _ in rounds) / length
    }
    for name in loops:
        low, middle, high = quartiles([others[name] / least for least, others in rounds])
        found[name] = {"ratio": middle, "quartiles": [low, high]}
    return found


class Loop:
    """A training loop, plain or with the plug-in.

    Args:
        task: Task to train.
        options: Further arguments of `HybridConfig`; None trains without the plug-in.
        build: Makes the optimizers; None takes AdamW with one group.
    """

    def __init__(
        self, task: Task, options: dict[str, Any] | None, build: Build | None = None
    ) -> None:
        self._task, recipe = task, task.recipe
        self.model: nn.Module = task.model(0)
        self.device = next(self.model.parameters()).device
        self._batches = task.batches(0)
        optimizers = (build or _one_group)(self.model, recipe, Rates(recipe.learning_rate), 10**9)
        self._optimizer = AroundOptimizers(optimizers)
        self._engine: HybridEngine | None = None
        if options is not None:
            config = HybridConfig(total_steps=10**9, warmup_steps=1, cooldown_steps=1, **options)
            self._engine = HybridEngine(self.model, optimizers, config)

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
    def counted(self) -> float | None:
        """Operations that correcting adds per operation of a full step; None if not counted."""
        return self._engine.ledger.correction_share if self._engine else None

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


def _one_group(
    model: nn.Module, recipe: Recipe, rates: Rates, updates: int
) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.AdamW(
            model.parameters(), lr=rates.base, betas=recipe.betas,
            weight_decay=recipe.weight_decay, fused=True,
        )
    ]  # fmt: skip


def memory(task: Task, options: dict[str, Any] | None) -> int:
    """Bytes that twelve full steps take, see `Memory`.

    Args:
        task: What is trained.
        options: Further arguments of `HybridConfig`; None trains without the plug-in.
    """
    warm(task)
    counter = Memory()
    loop = Loop(task, options)
    loop.run(12)
    used = counter.used()
    loop.close()
    return used
