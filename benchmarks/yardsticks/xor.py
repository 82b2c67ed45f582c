"""LightBench's recurrent problems: the parity of bits, and the exclusive or of two sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks import Task
from benchmarks.tasks.base import Batch


class Parity(nn.Module):
    """An LSTM over bits, whose last state tells their parity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, width)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, bits: Tensor) -> Tensor:
        """Return logits of shape [N] for bits of shape [N, length]."""
        states, _ = self.recurrent(self.embedding(bits))
        logits: Tensor = self.head(self.norm(states[:, -1])).squeeze(-1)
        return logits


class Exclusive(nn.Module):
    """An LSTM over one sequence, and another that starts from its state over a second one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_embedding, self.embedding = nn.Embedding(2, width), nn.Embedding(2, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, bits: Tensor) -> Tensor:
        """Return logits of shape [N, length / 2] for both sequences, one after the other."""
        one, other = bits.chunk(2, 1)
        _, state = self.first(self.first_embedding(one))
        states, _ = self.recurrent(self.embedding(other), state)
        logits: Tensor = self.head(self.norm(states)).squeeze(-1)
        return logits


@dataclass(frozen=True, kw_only=True)
class XorTask(Task):
    """Random bits, and their parity or the exclusive or of their halves."""

    metric = "binary cross-entropy on 256 held-out sequences"

    length: int
    parity: bool

    def net(self) -> nn.Module:
        return Parity(64) if self.parity else Exclusive(16)

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self._drawn(generator)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        bits, targets = batch
        return F.binary_cross_entropy_with_logits(model(bits), targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        return float(self.loss(model, self._drawn(torch.Generator().manual_seed(10**6))))

    def _drawn(self, generator: torch.Generator) -> Batch:
        length = self.length if self.parity else 2 * self.length
        bits = torch.randint(2, (256, length), generator=generator)
        one, other = bits.chunk(2, 1)
        return bits, (bits.sum(1) % 2 if self.parity else one ^ other).float()
