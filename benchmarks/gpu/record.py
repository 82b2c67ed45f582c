"""The public record's set-up: GPT-2 with 124 M parameters on FineWeb, full steps to a loss of 3.28.

It is the optimization track of github.com/KellerJordan/modded-nanogpt: model, data, order and batch
are fixed, optimizers are free, and what counts is the number of forward-backward passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks.gpu.gpt2 import GPT2, Size
from benchmarks.gpu.shards import Batch, Shards
from benchmarks.measure import wait
from benchmarks.peers.muon import Muon
from benchmarks.tasks.base import seeded
from benchmarks.train import Training
from hybrid_predict import HybridConfig

TARGET = 3.28
"""Validation loss in nats per token that counts as reached."""

_DECAY, _WARMUP = 0.7, 100
"""Share of the run in which all rates fall to zero, and steps in which they rise under AdamW."""

ADAMW_STEPS = 4950
"""Full steps in which the tuned AdamW reaches the target, by its authors' ten runs."""

ARMS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "adamw": ("adamw", None),
    "muon": ("muon", None),
    "corrected": ("adamw", {"speedup": 1}),
    "hybrid": ("adamw", {}),
    "hybrid-muon": ("muon", {}),
}
"""By name: what updates the hidden matrices, and arguments of `HybridConfig` or None without it."""


@dataclass(frozen=True)
class Setup:
    """How large model, batches and validation are; by default as in the record.

    ``rows`` windows of a batch go through the model together; ``every`` counts full steps between
    validations.
    """

    size: Size = field(default_factory=Size)
    tokens: int = 524_288
    rows: int = 16
    validation: int = 20 * 524_288
    every: int = 125


TOY = Setup(Size(layers=2, width=32, head=16, vocab=128, context=16), 64, 2, 128, 5)


def train(
    arm: str,
    steps: int,
    seed: int,
    shards: tuple[Shards, Shards],
    setup: Setup,
    device: torch.device,
    *,
    compiled: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Train once; ``curve`` has pairs of full steps and validation loss."""
    training, validation = shards
    training.need(steps, setup.tokens)
    validation.need(1, setup.validation)
    held = next(validation.read(setup.validation, setup.size.context))
    model = seeded(lambda: GPT2(setup.size), seed).to(device)
    if compiled:
        model.compile(dynamic=False)
    run = _Run(arm, steps, model, setup, device)
    batches = training.read(setup.tokens, setup.size.context)
    curve, seconds = _validated(run, batches, held, say)
    run.close()
    loss = curve[-1][1]
    return {
        "arm": arm, "steps": steps, "seed": seed, "rows": setup.rows, "compiled": compiled,
        **run.counts(), "curve": curve, "seconds": seconds,
        "loss": loss if math.isfinite(loss) else None, "reached": loss <= TARGET,
        "memory": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }  # fmt: skip


def _validated(
    run: _Run, batches: Iterator[Batch], held: Batch, say: Callable[[str], object]
) -> tuple[list[tuple[int, float]], float]:
    """Full steps and validation losses of a whole run, and its seconds of training alone."""
    curve: list[tuple[int, float]] = []
    seconds = 0.0
    while not run.done and (not curve or math.isfinite(curve[-1][1])):
        started = perf_counter()
        run.train(batches, run.setup.every)
        wait(run.device)
        seconds += perf_counter() - started
        loss = evaluate(run.model, held, run.setup.rows, run.device)
        curve.append((run.full_steps, loss))
        say(f"{run.full_steps:,} full steps, validation loss {loss:.4f}")
    return curve, seconds


@torch.no_grad()
def evaluate(model: nn.Module, batch: Batch, rows: int, device: torch.device) -> float:
    """Mean cross-entropy in nats per token."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in _parts(batch, rows):
        total += _loss(model, part, device)
    return float(total) / batch[0].numel()


class _Run(Training):
    """A run in the record's set-up, whose batches go through the model in parts."""

    def __init__(
        self, arm: str, steps: int, model: nn.Module, setup: Setup, device: torch.device
    ) -> None:
        hidden, options = ARMS[arm]
        self.setup, self.device = setup, device
        self._optimizers = optimizers(model, hidden)
        warmup = _WARMUP if hidden == "adamw" else 0
        factors = [schedule(steps, min(warmup, steps // 10))] * 2
        config = None if options is None else HybridConfig(total_steps=steps, **options)
        super().__init__(model, self._optimizers, factors, config, steps)

    def train(self, batches: Iterator[Batch], most: int) -> None:
        """Take full steps, so many or to the end of the run."""
        for _ in range(most):
            if self.done:
                return
            self.step(partial(self._full_step, next(batches)))

    def _full_step(self, batch: Batch) -> Tensor:
        total = torch.zeros((), device=self.device)
        for part in _parts(batch, self.setup.rows):
            loss = _loss(self.model, part, self.device)
            loss.backward()
            total += loss.detach()
        for optimizer in self._optimizers:
            optimizer.step()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        return total


def _parts(batch: Batch, rows: int) -> Iterator[Batch]:
    return zip(batch[0].split(rows), batch[1].split(rows), strict=True)


def optimizers(model: nn.Module, hidden: str) -> list[Optimizer]:
    """AdamW of embeddings, head and vectors, and what updates the blocks' matrices.

    Rates and constants are those that the track's participants found best.

    References:
        AdamW: pull request 353 of github.com/KellerJordan/modded-nanogpt (2026-08); Muon: pull
        request 323 (2026-06).
    """
    assert isinstance(model, GPT2)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": [model.embed.weight], "lr": 0.7},
        {"params": [model.head.weight], "lr": 0.004},
        {"params": vectors, "lr": 0.015},
    ]
    decay = 0.001 if hidden == "muon" else 0.002
    rest = AdamW(groups, betas=(0.8, 0.95), eps=1e-10, weight_decay=decay, fused=True)
    if hidden == "muon":
        return [rest, Muon(matrices, lr=0.025, weight_decay=0.05)]
    return [rest, AdamW(matrices, lr=0.001, betas=(0.9, 0.9), weight_decay=1.0, fused=True)]


def schedule(steps: int, warmup: int) -> Callable[[int], float]:
    """A linear warm-up, constant rates, and a linear decay to zero over the last 70 %."""

    def factor(step: int) -> float:
        rising = (step + 1) / warmup if step < warmup else 1.0
        return min(rising, max(0.0, (steps - step) / (_DECAY * steps)))

    return factor


def _loss(model: nn.Module, part: Batch, device: torch.device) -> Tensor:
    """Summed cross-entropy; the record's gradients are sums over the tokens of a batch."""
    inputs, targets = (x.to(device, non_blocking=True) for x in part)
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum")
