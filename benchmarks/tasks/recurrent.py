"""A recurrent net that predicts the next byte of source text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, seeded
from benchmarks.tasks.gpt import Batch, text
from hybrid_predict.demo.text import sample_batch, validation_batches

_BYTES = 256


class ByteGRU(nn.Module):
    """An embedding, gated recurrent layers, and a linear layer.

    Args:
        embedding: Width of the embedding.
        width: Width of the hidden state.
        layers: Recurrent layers.
    """

    def __init__(self, embedding: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_BYTES, embedding)
        self.recurrent = nn.GRU(embedding, width, layers, batch_first=True)
        self.head = nn.Linear(width, _BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, shape [B, T, 256], for bytes of shape [B, T]."""
        states, _ = self.recurrent(self.embedding(tokens))
        logits: Tensor = self.head(states)
        return logits


@dataclass(frozen=True, kw_only=True)
class RecurrentTask(Task):
    """Predict the next byte of the standard library's source text with a GRU.

    Args:
        embedding: Width of the embedding.
        width: Width of the hidden state.
        layers: Recurrent layers.
        context: Bytes in a window; the state starts at zero in each.
        batch_size: Windows in a batch.
        validation_batches: Batches of 32 windows behind the metric.
    """

    metric = "validation loss (nats per byte)"

    embedding: int = 64
    width: int = 128
    layers: int = 1
    context: int = 48
    batch_size: int = 16
    validation_batches: int = 32

    def model(self, seed: int) -> nn.Module:
        """A freshly initialised GRU."""
        return seeded(lambda: ByteGRU(self.embedding, self.width, self.layers), seed)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Random windows of shape [batch_size, context] and the bytes that follow."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield sample_batch(text().train, self.batch_size, self.context, generator)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats per byte."""
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Cross-entropy on fixed windows of files that training never saw."""
        batches = validation_batches(text().val, 32, self.context, self.validation_batches)
        return float(torch.stack([self.loss(model, batch) for batch in batches]).mean())

    def tiny(self) -> Task:
        """A few steps, one validation batch."""
        return replace(self, steps=12, validation_batches=1)

    def to_dict(self) -> dict[str, Any]:
        """Everything the results depend on, the text included."""
        return {**super().to_dict(), "text_sha256": text().sha256}


GRU = RecurrentTask(
    name="gru",
    title="recurrent net on source text",
    steps=600,
    recipe=Recipe(
        learning_rate=1e-3,
        rates=(0.002, 0.004, 0.008, 0.016, 0.032),
        betas=(0.9, 0.999),
        schedule="warmup-stable-decay",
    ),
)
