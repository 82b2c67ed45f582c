"""Byte-level GPTs on source text, in four sizes: two for a CPU, two for a CUDA device."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, seeded
from hybrid_predict.demo.byte_gpt import ByteGPT, ByteGPTConfig
from hybrid_predict.demo.text import (
    StdlibText,
    load_stdlib_text,
    read_source,
    sample_batch,
    validation_batches,
)

Batch = tuple[Tensor, Tensor]

text = lru_cache(maxsize=1)(load_stdlib_text)


@lru_cache(maxsize=1)
def package_text(max_bytes: int, device: torch.device) -> StdlibText:
    """Source text of the installed packages.

    Args:
        max_bytes: Upper limit on training and validation bytes together.
        device: Where the bytes are put.
    """
    root = Path(sysconfig.get_path("purelib"))
    found = read_source(root, root.rglob("*.py"), max_bytes)
    return replace(found, train=found.train.to(device), val=found.val.to(device))


@dataclass(frozen=True, kw_only=True)
class ByteGPTTask(Task):
    """A byte-level GPT on the standard library's source text.

    Args:
        layers: Decoder blocks.
        heads: Attention heads.
        width: Width of the residual stream.
        context: Bytes in a window.
        batch_size: Windows in a batch.
        validation_batches: Batches of 32 windows behind the metric.
    """

    metric = "validation loss (nats per byte)"

    layers: int
    heads: int
    width: int
    context: int = 64
    batch_size: int = 16
    validation_batches: int = 32

    def model(self, seed: int) -> nn.Module:
        """A freshly initialised GPT."""
        return seeded(lambda: ByteGPT(self.shape()), seed)

    def shape(self) -> ByteGPTConfig:
        """The model's shape."""
        return ByteGPTConfig(
            layers=self.layers, heads=self.heads, width=self.width, context=self.context
        )

    def batches(self, seed: int) -> Iterator[Batch]:
        """Random windows of shape [batch_size, context] and the bytes that follow."""
        data = self.data().train
        generator = torch.Generator(data.device).manual_seed(seed)
        while True:
            yield sample_batch(data, self.batch_size, self.context, generator)

    def data(self) -> StdlibText:
        """Training and validation bytes."""
        return text()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats per byte."""
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Cross-entropy on fixed windows of files that training never saw."""
        batches = validation_batches(self.data().val, 32, self.context, self.validation_batches)
        return float(torch.stack([self.loss(model, batch) for batch in batches]).mean())

    def tiny(self) -> Task:
        """A few steps, one validation batch."""
        return replace(self, steps=12, validation_batches=1)

    def to_dict(self) -> dict[str, Any]:
        """Everything the results depend on, the text included."""
        return {**super().to_dict(), "text_sha256": self.data().sha256}


@dataclass(frozen=True, kw_only=True)
class PackageGPTTask(ByteGPTTask):
    """A byte-level GPT on the source text of the installed packages, in bfloat16 autocast.

    Weights, gradients and optimizer state stay in float32. Meant for a CUDA device; `tiny` runs
    anywhere.

    Args:
        max_bytes: Upper limit on the text.
    """

    needs_cuda = True

    max_bytes: int = 100_000_000

    def data(self) -> StdlibText:
        """Training and validation bytes on the device."""
        return package_text(self.max_bytes, self._device)

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def model(self, seed: int) -> nn.Module:
        """A freshly initialised GPT on the device."""
        return super().model(seed).to(self._device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats per byte."""
        with torch.autocast(self._device.type, torch.bfloat16):
            return super().loss(model, batch)

    def tiny(self) -> Task:
        """A few steps of a small model on little text."""
        return replace(
            self, steps=12, layers=2, heads=2, width=32, context=32, batch_size=4,
            validation_batches=1, max_bytes=1_000_000,
        )  # fmt: skip


GPT_SMALL = ByteGPTTask(
    name="gpt-0.2m",
    title="byte GPT, 0.2 M parameters",
    steps=600,
    layers=3,
    heads=2,
    width=64,
    recipe=Recipe(learning_rate=1e-3, rates=(0.001, 0.002, 0.004, 0.008, 0.016), weight_decay=0.1),
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

GPT_30M = PackageGPTTask(
    name="gpt-30m",
    title="byte GPT, 30 M parameters, bf16",
    steps=1500,
    layers=9,
    heads=8,
    width=512,
    context=512,
    batch_size=32,
    recipe=Recipe(learning_rate=1e-3, rates=(0.0005, 0.001, 0.002, 0.004), weight_decay=0.1),
)

GPT_124M = PackageGPTTask(
    name="gpt-124m",
    title="byte GPT, 124 M parameters, bf16",
    steps=1500,
    layers=16,
    heads=10,
    width=800,
    context=512,
    batch_size=32,
    recipe=Recipe(learning_rate=6e-4, rates=(0.0003, 0.0006, 0.0012, 0.0024), weight_decay=0.1),
)
