"""Byte-level GPTs on source text, one for a CPU, two for a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe
from benchmarks.tasks.byte_gpt import ByteGPT
from benchmarks.tasks.stdlib_text import StdlibText, read_source
from benchmarks.tasks.text import TextTask


@lru_cache(maxsize=1)
def package_text(max_bytes: int, device: torch.device) -> StdlibText:
    """Source text of the installed packages."""
    root = Path(torch.__file__).parents[1]
    text = read_source(root, root.rglob("*.py"), max_bytes)
    return replace(text, train=text.train.to(device), val=text.val.to(device))


@dataclass(frozen=True, kw_only=True)
class ByteGPTTask(TextTask):
    """A byte-level GPT on the standard library's source text."""

    layers: int
    heads: int
    width: int
    context: int = 64

    def window(self) -> int:
        return self.context

    def net(self) -> ByteGPT:
        return ByteGPT(self.layers, self.heads, self.width, self.context)


@dataclass(frozen=True, kw_only=True)
class PackageGPTTask(ByteGPTTask):
    """A byte-level GPT on the source text of the installed packages, in bfloat16 autocast.

    Weights, gradients and optimizer state stay in float32. Meant for a CUDA device; `tiny` runs
    anywhere.
    """

    needs_cuda = True
    small: ClassVar = {
        "layers": 2, "heads": 2, "width": 32, "context": 32, "batch_size": 4,
        "validation_batches": 1, "max_bytes": 1_000_000,
    }  # fmt: skip

    max_bytes: int = 100_000_000

    def data(self) -> StdlibText:
        return package_text(self.max_bytes, self._device)

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def model(self, seed: int) -> nn.Module:
        return super().model(seed).to(self._device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16):
            return super().loss(model, batch)


GPT_SMALL = ByteGPTTask(
    name="gpt-0.2m",
    title="byte GPT, 0.2 M parameters",
    steps=600,
    layers=3,
    heads=2,
    width=64,
    recipe=Recipe(learning_rate=1e-3, rates=(0.001, 0.002, 0.004, 0.008, 0.016), weight_decay=0.1),
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
