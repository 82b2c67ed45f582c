"""Byte-level GPTs on the standard library's source text, in two sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybrid_predict.tasks.base import Recipe, Task, seeded
from hybrid_predict.tasks.byte_gpt import ByteGPT, ByteGPTConfig
from hybrid_predict.tasks.stdlib_text import (
    StdlibText,
    load_stdlib_text,
    sample_batch,
    validation_batches,
)

Batch = tuple[Tensor, Tensor]

text = lru_cache(maxsize=1)(load_stdlib_text)


@dataclass(frozen=True, kw_only=True)
class ByteGPTTask(Task):
    metric = "validation loss (nats per byte)"

    layers: int
    heads: int
    width: int
    context: int = 64
    batch_size: int = 16
    validation_batches: int = 32

    def model(self, seed: int) -> nn.Module:
        return seeded(lambda: ByteGPT(self.shape()), seed)

    def shape(self) -> ByteGPTConfig:
        """The model's shape."""
        return ByteGPTConfig(
            layers=self.layers, heads=self.heads, width=self.width, context=self.context
        )

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield sample_batch(self.data().train, self.batch_size, self.context, generator)

    def data(self) -> StdlibText:
        """Training and validation bytes."""
        return text()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        batches = validation_batches(self.data().val, 32, self.context, self.validation_batches)
        return float(torch.stack([self.loss(model, batch) for batch in batches]).mean())


GPT_SMALL = ByteGPTTask(
    name="gpt-0.2m",
    title="byte GPT, 0.2 M parameters",
    steps=600,
    layers=3,
    heads=2,
    width=64,
    recipe=Recipe(learning_rate=1e-3, rates=(0.004, 0.008, 0.016, 0.032), weight_decay=0.1),
)

GPT_LARGE = ByteGPTTask(
    name="gpt-1m",
    title="byte GPT, 1 M parameters",
    steps=1200,
    layers=4,
    heads=4,
    width=144,
    recipe=Recipe(learning_rate=1e-3, rates=(0.002, 0.004, 0.008, 0.016), weight_decay=0.1),
)
