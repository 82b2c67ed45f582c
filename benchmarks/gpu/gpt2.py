"""The GPT of the public record's optimization track: 124 M parameters beside its output head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """The model's shape, by default the record's; ``head`` is the width of an attention head."""

    layers: int = 12
    width: int = 768
    head: int = 128
    vocab: int = 50304
    context: int = 1024


class GPT2(nn.Module):
    r"""Pre-norm decoder with rotary positions, normalised queries and keys, and squared ReLUs.

    Logits are bounded softly, :math:`15 z / \sqrt{z^2 + 15^2}`. Weights that write to the residual
    stream and the head start at zero. Token embeddings are stored in bfloat16 and all other weights
    in float32; activations are in bfloat16.

    References:
        github.com/KellerJordan/modded-nanogpt, records/track_3_optimization (2026).
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocab, size.width, dtype=torch.bfloat16)
        self.first_norm = _Norm(size.width)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.last_norm = _Norm(size.width)
        self.head = _Linear(size.width, size.vocab, zero=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next tokens, float32 of shape [B, T, vocab]."""
        x = self.first_norm(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.last_norm(x)).float()
        bounded: Tensor = 15 * logits * (logits.square() + 15**2).rsqrt()
        return bounded


class _Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside the identity."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = _Norm(size.width)
        self.query, self.key, self.value = (_Linear(size.width, size.width) for _ in range(3))
        self.attention_out = _Linear(size.width, size.width, zero=True)
        self.mlp_norm = _Norm(size.width)
        self.mlp_in = _Linear(size.width, 4 * size.width)
        self.mlp_out = _Linear(4 * size.width, size.width, zero=True)
        self._head = size.head
        self.rotations: Tensor
        self.register_buffer("rotations", _rotations(size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape [B, T, width] stays."""
        x = x + self._attend(self.attention_norm(x))
        hidden = F.relu(self.mlp_in(self.mlp_norm(x))).square()
        return x + torch.as_tensor(self.mlp_out(hidden))

    def _attend(self, x: Tensor) -> Tensor:
        projected = (part(x).unflatten(-1, (-1, self._head)).transpose(1, 2)
                     for part in (self.query, self.key, self.value))  # fmt: skip
        query, key, value = projected
        query, key = (
            _turned(F.rms_norm(part, (self._head,)), self.rotations).to(value.dtype)
            for part in (query, key)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.12)
        return torch.as_tensor(self.attention_out(mixed.transpose(1, 2).flatten(2)))


class _Norm(nn.RMSNorm):
    """Root-mean-square norm in the type of its input, whatever that of its gains."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape and dtype stay."""
        assert self.weight is not None
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype))


class _Linear(nn.Linear):
    """A layer in the type of its input; its bias starts at zero."""

    def __init__(self, inputs: int, outputs: int, *, zero: bool = False) -> None:
        super().__init__(inputs, outputs)
        nn.init.zeros_(self.bias)
        nn.init.normal_(self.weight, std=0.0 if zero else (3 * inputs) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The dtype stays."""
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def _rotations(size: Size) -> Tensor:
    """Cosines and sines of shape [2, context, head / 2]; half of the entries do not turn."""
    turning = torch.logspace(0, -1, size.head // 4, base=1024)
    speeds = torch.cat([turning, torch.zeros(size.head // 2 - size.head // 4)])
    angles = torch.outer(torch.arange(size.context, dtype=torch.float32), speeds)
    return torch.stack([angles.cos(), angles.sin()])


def _turned(x: Tensor, rotations: Tensor) -> Tensor:
    """Entries of shape [B, heads, T, head], turned in pairs by angles that grow with position."""
    cos, sin = rotations[:, : x.shape[2]]
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos + right * sin, right * cos - left * sin], dim=-1)
