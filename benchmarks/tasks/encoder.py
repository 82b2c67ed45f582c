"""Fine-tuning a pre-trained encoder of bytes to tell packages by their source text."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, linear_schedule, seeded
from hybrid_predict.demo.text import sample_batch, validation_batches
from hybrid_predict.errors import ConfigError

Batch = tuple[Tensor, Tensor]

PACKAGES = ("asyncio", "email", "http", "importlib", "multiprocessing", "unittest", "urllib", "xml")
"""Packages of the standard library, one class each."""

_BYTES, _MASK = 257, 256
_BLOCK, _VALIDATION_EVERY = 1024, 4
_MASKED = 0.15
_PRETRAINING_RATE = 2e-3


@lru_cache(maxsize=1)
def load_packages() -> tuple[tuple[Tensor, Tensor], ...]:
    """Source text of every package, every fourth kilobyte of it for validation.

    Returns:
        Training and validation bytes of each package, uint8.

    Raises:
        ConfigError: If this Python was installed without a package's source.
    """
    return tuple(_split(name) for name in PACKAGES)


def _split(package: str) -> tuple[Tensor, Tensor]:
    root = Path(sysconfig.get_path("stdlib"), package)
    content = b"".join(path.read_bytes() for path in sorted(root.rglob("*.py")))
    if len(content) < _VALIDATION_EVERY * _BLOCK:
        raise ConfigError(
            f"source of {package}",
            f"at least {_VALIDATION_EVERY * _BLOCK} bytes of .py files under {root}",
            f"{len(content)} bytes",
            "Use a Python installation that ships its standard library as .py files.",
        )
    parts = (bytearray(), bytearray())
    for k, start in enumerate(range(0, len(content), _BLOCK)):
        held_out = k % _VALIDATION_EVERY == _VALIDATION_EVERY - 1
        parts[held_out].extend(content[start : start + _BLOCK])
    train, val = (torch.frombuffer(part, dtype=torch.uint8) for part in parts)
    return train, val


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape of an encoder and how long it is pre-trained.

    Args:
        layers: Encoder layers.
        heads: Attention heads.
        width: Width of the residual stream.
        context: Bytes in a window.
        steps: Steps of the pre-training.
        batch_size: Windows in a batch of the pre-training.
    """

    layers: int = 3
    heads: int = 2
    width: int = 64
    context: int = 64
    steps: int = 800
    batch_size: int = 16


class ByteEncoder(nn.Module):
    """A transformer encoder over bytes with a linear layer on top.

    Args:
        shape: Its shape.
        outputs: Outputs of the linear layer.
        pooled: Whether the linear layer takes the mean over a window, or every position.
    """

    def __init__(self, shape: Shape, outputs: int, *, pooled: bool) -> None:
        super().__init__()
        self.pooled = pooled
        self.token_embedding = nn.Embedding(_BYTES, shape.width)
        self.position_embedding = nn.Embedding(shape.context, shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, 4 * shape.width, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        norm = nn.LayerNorm(shape.width)
        self.encoder = nn.TransformerEncoder(layer, shape.layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs of shape [B, outputs] or [B, T, outputs] for bytes of shape [B, T]."""
        positions = self.position_embedding(torch.arange(tokens.shape[1]))
        states = self.encoder(self.token_embedding(tokens) + positions)
        outputs: Tensor = self.head(states.mean(1) if self.pooled else states)
        return outputs


@lru_cache(maxsize=2)
def pretrained(shape: Shape) -> dict[str, Tensor]:
    """Weights of an encoder that has learnt to fill in masked bytes (Devlin et al., 2019).

    Args:
        shape: Shape and length of the pre-training, always from the same seed, on the training
            bytes of all packages.

    Returns:
        Its state dict without the linear layer; the same tensors on every call in this process.
    """
    model = seeded(lambda: ByteEncoder(shape, _BYTES, pooled=False), 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PRETRAINING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, linear_schedule(shape.steps, 0.05))
    generator = torch.Generator().manual_seed(0)
    data = torch.cat([train for train, _ in load_packages()])
    for _ in range(shape.steps):
        tokens, _ = sample_batch(data, shape.batch_size, shape.context, generator)
        masked = torch.rand(tokens.shape, generator=generator) < _MASKED
        outputs = model(tokens.masked_fill(masked, _MASK))
        optimizer.zero_grad()
        F.cross_entropy(outputs[masked], tokens[masked]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    state = model.state_dict()
    return {name: value.clone() for name, value in state.items() if not name.startswith("head.")}


@dataclass(frozen=True, kw_only=True)
class EncoderTask(Task):
    """Say which package of the standard library a window of source text comes from.

    Args:
        shape: The encoder, and its pre-training, which is done once per process.
        batch_size: Windows in a batch.
        validation_batches: Batches of 8 windows of every package behind the metric.
    """

    metric = "validation loss (nats per window)"

    shape: Shape = Shape()
    batch_size: int = 8
    validation_batches: int = 16

    def model(self, seed: int) -> nn.Module:
        """The pre-trained encoder, all of it trainable, with a new linear layer."""
        return seeded(self._net, seed)

    def _net(self) -> nn.Module:
        model = ByteEncoder(self.shape, len(PACKAGES), pooled=True)
        model.load_state_dict(pretrained(self.shape), strict=False)
        return model

    def batches(self, seed: int) -> Iterator[Batch]:
        """Random windows of shape [batch_size, context] and the numbers of their packages."""
        generator = torch.Generator().manual_seed(seed)
        packages = [train for train, _ in load_packages()]
        while True:
            labels = torch.randint(len(packages), (self.batch_size,), generator=generator)
            windows = [
                sample_batch(packages[k], 1, self.shape.context, generator)[0]
                for k in labels.tolist()
            ]
            yield torch.cat(windows), labels

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats per window."""
        windows, labels = batch
        return F.cross_entropy(model(windows), labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Mean cross-entropy on evenly spaced held-out windows, as many of every package."""
        losses = [
            self.loss(model, (windows, torch.full((len(windows),), k)))
            for k, (_, val) in enumerate(load_packages())
            for windows, _ in validation_batches(
                val, 8, self.shape.context, self.validation_batches
            )
        ]
        return float(torch.stack(losses).mean())

    def tiny(self) -> Task:
        """The same task for a few steps, its pre-training included."""
        return replace(self, steps=12, shape=replace(self.shape, steps=12), validation_batches=1)

    def to_dict(self) -> dict[str, Any]:
        """Everything the results depend on, the text included."""
        digest = hashlib.sha256()
        for part in (part for package in load_packages() for part in package):
            digest.update(part.numpy().tobytes())
        return {**super().to_dict(), "text_sha256": digest.hexdigest()}


ENCODER = EncoderTask(
    name="encoder",
    title="encoder fine-tuned to tell packages",
    steps=800,
    recipe=Recipe(
        learning_rate=5e-5,
        rates=(0.00005, 0.0001, 0.0002, 0.0004, 0.0008),
        betas=(0.9, 0.999),
        warmup_fraction=0.1,
    ),
)
