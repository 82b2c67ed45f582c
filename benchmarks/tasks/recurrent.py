"""A recurrent net that predicts the next byte of source text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, seeded
from benchmarks.tasks.text import TextTask

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
class RecurrentTask(TextTask):
    """Predict the next byte of the standard library's source text with a GRU.

    Args:
        embedding: Width of the embedding.
        width: Width of the hidden state.
        layers: Recurrent layers.
        context: Bytes in a window; the state starts at zero in each.
    """

    embedding: int = 64
    width: int = 128
    layers: int = 1
    context: int = 48

    def window(self) -> int:
        """Bytes in a window."""
        return self.context

    def model(self, seed: int) -> nn.Module:
        """A freshly initialised GRU."""
        return seeded(lambda: ByteGRU(self.embedding, self.width, self.layers), seed)


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
