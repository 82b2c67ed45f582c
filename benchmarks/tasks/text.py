"""Base class of tasks on bytes of text: random windows, their loss, fixed validation windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Task
from benchmarks.tasks.stdlib_text import (
    StdlibText,
    load_stdlib_text,
    sample_batch,
    validation_batches,
)

Batch = tuple[Tensor, Tensor]

source_text = lru_cache(maxsize=1)(load_stdlib_text)


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Predict the next byte of a text, by default the standard library's source text.

    Args:
        batch_size: Windows in a batch.
        validation_batches: Batches of 32 windows in the evaluation.
    """

    metric = "validation loss (nats per byte)"

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
            yield sample_batch(data, self.batch_size, self.window(), generator)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats per byte."""
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Cross-entropy on fixed windows of files that training never saw."""
        batches = validation_batches(self.data().val, 32, self.window(), self.validation_batches)
        return float(torch.stack([self.loss(model, batch) for batch in batches]).mean())

    def tiny(self) -> Task:
        """A few steps, one validation batch."""
        return replace(self, steps=12, validation_batches=1)

    def to_dict(self) -> dict[str, Any]:
        """Everything the results depend on, the text included."""
        return {**super().to_dict(), "text_sha256": self.data().sha256}
