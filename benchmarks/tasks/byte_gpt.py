"""A small byte-level GPT: pre-norm decoder blocks with learned positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_INIT_STD = 0.02


class ByteGPT(nn.Module):
    """Decoder-only transformer over bytes.

    With ``lean`` there are no biases, and the head is the token embedding.
    """

    def __init__(
        self, layers: int, heads: int, width: int, context: int, vocab: int = 256, *,
        lean: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(heads, width, bias=not lean) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width, bias=not lean)
        self.head = nn.Linear(width, vocab, bias=False)
        if lean:
            self.head.weight = self.token_embedding.weight
        # GPT-2's initial weights. Each block adds twice to the residual stream; this keeps its
        # variance free of depth.
        residual_std = _INIT_STD / math.sqrt(2 * layers)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                is_residual = name.endswith(("attention_out", "mlp_out"))
                nn.init.normal_(module.weight, std=residual_std if is_residual else _INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next bytes, [B, T, vocab], for int64 bytes of shape [B, T]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


class _Block(nn.Module):
    """Causal self-attention and a GELU MLP, each after a layer norm and inside a residual sum."""

    def __init__(self, heads: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.attention_out = nn.Linear(width, width, bias=bias)
        self.mlp_norm = nn.LayerNorm(width, bias=bias)
        self.mlp_in = nn.Linear(width, 4 * width, bias=bias)
        self.mlp_out = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Update the residual stream, of shape [B, T, width]."""
        x = x + self._attend(self.attention_norm(x))
        x = x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))
        return x

    def _attend(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(dim=2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.attention_out(attended.transpose(1, 2).flatten(2))
        return output
