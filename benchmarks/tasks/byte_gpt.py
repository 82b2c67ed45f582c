"""A small byte-level GPT: pre-norm decoder blocks with learned positions and an untied head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hybrid_predict.errors import ConfigError

_INIT_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class ByteGPTConfig:
    """Shape of a `ByteGPT`.

    Attributes:
        layers: Number of decoder blocks.
        heads: Number of attention heads; must divide `width`.
        width: Width of the residual stream.
        context: Longest input in bytes.
        vocab: Number of token values.

    Raises:
        ConfigError: If a size is below one, or `heads` does not divide `width`.
    """

    layers: int
    heads: int
    width: int
    context: int
    vocab: int = 256

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "context", "vocab"):
            if getattr(self, name) < 1:
                raise ConfigError(name, "at least 1", getattr(self, name))
        if self.width % self.heads:
            raise ConfigError("heads", f"a divisor of width={self.width}", self.heads)


class ByteGPT(nn.Module):
    """Decoder-only transformer over bytes."""

    def __init__(self, config: ByteGPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        self._init_weights()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predicts the next byte at every position.

        Args:
            tokens: Byte values, int64 of shape [B, T] with T at most `config.context`.

        Returns:
            Logits of shape [B, T, vocab], in the dtype of the parameters.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.final_norm(x))
        return logits

    def _init_weights(self) -> None:
        """Draws GPT-2's initial weights from the global source of randomness."""
        # Each block adds twice to the residual stream; this keeps its variance free of depth.
        residual_std = _INIT_STD / math.sqrt(2 * self.config.layers)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                is_residual = name.endswith(("attention_out", "mlp_out"))
                nn.init.normal_(module.weight, std=residual_std if is_residual else _INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


class _Block(nn.Module):
    """Causal self-attention and a GELU MLP, each after a layer norm and inside a residual sum."""

    def __init__(self, config: ByteGPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp_in = nn.Linear(config.width, 4 * config.width)
        self.mlp_out = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Updates the residual stream, of shape [B, T, width]."""
        x = x + self._attend(self.attention_norm(x))
        x = x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))
        return x

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(dim=2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: torch.Tensor = self.attention_out(attended.transpose(1, 2).flatten(2))
        return output
