"""Tasks on bytes of text: random windows, their loss, fixed validation windows; a recurrent net."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, Task
from benchmarks.tasks.stdlib_text import StdlibText, fixed_windows, random_windows, source_text

_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Predict the next byte of a text, by default the standard library's source text.

    The evaluation has batches of 32 windows.
    """

    metric = "validation loss (nats per byte)"
    small: ClassVar = {"validation_batches": 1}

    batch_size: int = 16
    validation_batches: int = 32

    @abstractmethod
    def window(self) -> int:
        """Bytes in a window."""

    def data(self) -> StdlibText:
        """Training and validation bytes."""
        return source_text()

    def batches(self, seed: int) -> Iterator[Batch]:
        """Random windows of shape [batch_size, window] and the bytes that follow."""
        data = self.data().train
        generator = torch.Generator(data.device).manual_seed(seed)
        while True:
            yield random_windows(data, self.batch_size, self.window(), generator)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        batches = fixed_windows(self.data().val, 32, self.window(), self.validation_batches)
        return float(torch.stack([self.loss(model, batch) for batch in batches]).mean())

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "text_sha256": self.data().sha256}


class ByteGRU(nn.Module):
    """An embedding, gated recurrent layers, and a linear layer."""

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
class RecurrentTask(TextTask):
    """Predict the next byte of source text with a GRU whose state starts at zero."""

    embedding: int = 64
    width: int = 128
    layers: int = 1
    context: int = 48

    def window(self) -> int:
        return self.context

    def net(self) -> nn.Module:
        return ByteGRU(self.embedding, self.width, self.layers)


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
