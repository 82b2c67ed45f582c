"""Nets that predict the next byte of a text: a GRU, and GPTs, whole or with low-rank adapters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, Task, grid, trained_state
from benchmarks.tasks.texts import Text, characters, reference_text, source_text

_BYTES = 256
_INIT_STD = 0.02

PUBLISHED = "published, on tiny Shakespeare: 1.88"  # validation loss of `nanogpt`


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Predict the next byte of a text, by default the standard library's source text."""

    metric = "validation loss (nats per byte)"
    small: ClassVar = {"validation_batches": 1}

    context: int = 64
    batch_size: int = 16
    validation_batches: int = 32

    def data(self) -> Text:
        return source_text()

    def batches(self, seed: int) -> Iterator[Batch]:
        data = self.data().train
        generator = torch.Generator(data.device).manual_seed(seed)
        size = (self.batch_size,)
        while True:
            last = len(data) - self.context
            starts = torch.randint(last, size, generator=generator, device=data.device)
            yield self._windows(data, starts)

    def _windows(self, data: Tensor, starts: Tensor) -> Batch:
        within = torch.arange(self.context + 1, device=data.device)
        windows = data[starts[:, None] + within].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self, model: nn.Module) -> float:
        data = self.data().val
        count = 32 * self.validation_batches
        last = len(data) - self.context - 1
        starts = torch.arange(count, device=data.device) * last // (count - 1)
        losses = [self.loss(model, self._windows(data, part)) for part in starts.split(32)]
        return float(torch.stack(losses).mean())

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
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states)


@dataclass(frozen=True, kw_only=True)
class RecurrentTask(TextTask):
    """Predict the next byte of source text with a GRU whose state starts at zero."""

    steps: int = 600
    recipe: Recipe = Recipe(
        rates=grid(0.002, 5), betas=(0.9, 0.999), schedule="warmup-stable-decay"
    )
    embedding: int = 64
    width: int = 128
    layers: int = 1
    context: int = 48

    def net(self) -> nn.Module:
        return ByteGRU(self.embedding, self.width, self.layers)


GRU = RecurrentTask("gru", "recurrent net on source text")


class ByteGPT(nn.Module):
    """Decoder-only transformer; with ``lean`` without biases, and with tied embeddings."""

    def __init__(
        self,
        layers: int,
        heads: int,
        width: int,
        context: int,
        vocab: int = 256,
        lean: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        blocks = (_Block(heads, width, dropout, bias=not lean) for _ in range(layers))
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(width, bias=not lean)
        self.head = nn.Linear(width, vocab, bias=False)
        if lean:
            self.head.weight = self.token_embedding.weight
        # GPT-2's initial weights: the variance of the residual stream does not depend on depth.
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
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


class _Block(nn.Module):
    """Causal self-attention and a GELU MLP, each after a layer norm and inside a residual sum."""

    def __init__(self, heads: int, width: int, dropout: float, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.share = dropout
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.attention_norm = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.attention_out = nn.Linear(width, width, bias=bias)
        self.mlp_norm = nn.LayerNorm(width, bias=bias)
        self.mlp_in = nn.Linear(width, 4 * width, bias=bias)
        self.mlp_out = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self._attend(self.attention_norm(x)))
        x = x + self.dropout(self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)))))
        return x

    def _attend(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(dim=2)
        share = self.share if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=share, is_causal=True
        )
        return self.attention_out(attended.transpose(1, 2).flatten(2))


@dataclass(frozen=True, kw_only=True)
class ByteGPTTask(TextTask):
    """A byte-level GPT on the standard library's source text."""

    layers: int
    heads: int
    width: int

    def net(self) -> ByteGPT:
        return ByteGPT(self.layers, self.heads, self.width, self.context)


GPT_SMALL = ByteGPTTask(
    "gpt-0.2m",
    "byte GPT, 0.2 M parameters",
    steps=600,
    layers=3,
    heads=2,
    width=64,
    recipe=Recipe(rates=grid(0.001, 5), weight_decay=0.1),
)


@dataclass(frozen=True, kw_only=True)
class CharacterTask(ByteGPTTask):
    """Predict the next character with nanoGPT's model."""

    small: ClassVar = {"validation_batches": 1, "layers": 1, "width": 16}

    path: Path | None = None

    def data(self) -> Text:
        return characters(self.path)[0]

    def net(self) -> ByteGPT:
        vocabulary = characters(self.path)[1]
        return ByteGPT(self.layers, self.heads, self.width, self.context, vocabulary, lean=True)

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().to_dict().items() if k != "path"}


def nanogpt(path: Path | None = None) -> CharacterTask:
    """NanoGPT's CPU recipe, of the README of github.com/karpathy/nanoGPT (2022), on a text."""
    return CharacterTask(
        name="stdlib" if path is None else path.stem,
        title="nanoGPT's CPU configuration",
        steps=2000,
        layers=4,
        heads=4,
        width=128,
        batch_size=12,
        path=path,
        recipe=Recipe(rates=(1e-3,), betas=(0.9, 0.99), weight_decay=0.1, schedule="cosine"),
    )


class LowRankLinear(nn.Module):
    r"""A frozen linear layer with a trained low-rank term, B from zero (Hu et al., 2021, LoRA).

    .. math:: y = W x + b + \frac{\alpha}{r} B A x
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.up(self.down(x))


@dataclass(frozen=True, kw_only=True)
class LowRankTask(TextTask):
    """Adapt a GPT that knows Python's source text to its reference text, by adapters in blocks."""

    kinds: ClassVar = {"*.up.weight": "hidden"}
    small: ClassVar = {"base_steps": 12, "validation_batches": 1}

    steps: int = 600
    recipe: Recipe = Recipe(rates=grid(0.004, 4), weight_decay=0.0)
    rank: int = 8
    alpha: float = 16.0
    base_steps: int = 600
    batch_size: int = 8
    validation_batches: int = 16

    def base(self) -> ByteGPTTask:
        """Return the task that the GPT is trained on first, at the best rate of its grid."""
        recipe = replace(GPT_SMALL.recipe, learning_rate=0.004)
        return replace(GPT_SMALL, steps=self.base_steps, recipe=recipe)

    def pretrained(self) -> ByteGPT:
        """Return the GPT that was trained first."""
        model = self.base().net()
        model.load_state_dict(trained_state(self.base()))
        return model

    def net(self) -> nn.Module:
        model = self.pretrained().requires_grad_(False)
        for block in model.blocks:
            for name, layer in list(block.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(block, name, LowRankLinear(layer, self.rank, self.alpha))
        return model

    def data(self) -> Text:
        return reference_text()

    def to_dict(self) -> dict[str, Any]:
        plain = {**super().to_dict(), "base": self.base().to_dict()}
        del plain["context"]  # it is the base's
        return plain


LORA = LowRankTask("lora", "low-rank adapters on a byte GPT")
