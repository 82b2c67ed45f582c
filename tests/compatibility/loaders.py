"""Rows: where batches come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_models import Net, Recorded, SeededLoader
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from compatibility.rows import row
from compatibility.subject import EPOCHS, STEPS, cosine, follows, refuses, train


class Stream(IterableDataset[Any]):
    """Batches of no known length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.length):
            yield [torch.randn(16, 8, generator=generator)]


def stream(length: int) -> Any:
    return DataLoader(Stream(length), batch_size=None)


@row("iterable loader, `max_steps`")
def iterable(folder: Path) -> None:
    run = follows(train=stream(10**9), val_check_interval=10)
    assert run.model.batches == 24


@row("iterable loader, `max_epochs`")
def iterable_by_epochs(folder: Path) -> str:
    train(Net("none"), plugin=Recorded(total_steps=STEPS), train=stream(6), max_epochs=6).sound()
    words = "max_epochs=6, inf batches.*limit_train_batches"
    return refuses(words, train=stream(6), max_epochs=6)


@row("iterable loader, `max_epochs`, `limit_train_batches`")
def iterable_by_limited_epochs(folder: Path) -> None:
    assert follows(train=stream(6), **EPOCHS, val_check_interval=6).trainer.current_epoch == 6


@row("stateful loader")
def stateful(folder: Path) -> None:
    data = SeededLoader(length=6)
    train(cosine(), train=data, max_epochs=6).sound()
    assert (data.epoch, data.position) == (6, 0)
