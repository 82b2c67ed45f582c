"""Rows: where batches come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_models import Net, Recorded, SeededLoader
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from compatibility.rows import row
from compatibility.subject import EPOCHS, STEPS, refuses, same_rates, train
from hybrid_predict import UnsupportedSetupError


class Stream(IterableDataset[Any]):
    """Endless batches of no known length."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield [torch.randn(16, 8, generator=generator)]


class Short(Stream):
    """Six batches per epoch, of no known length."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        for _, batch in zip(range(6), super().__iter__(), strict=False):
            yield batch


def short() -> Any:
    return DataLoader(Short(), batch_size=None)


@row("iterable loader, `max_steps`")
def iterable(folder: Path) -> None:
    def stream() -> Any:
        return DataLoader(Stream(), batch_size=None)

    run = train(Net("cosine"), train=stream(), val_check_interval=10).sound()
    assert run.model.batches == 24
    assert same_rates(lambda: Net("cosine"), run, train=stream(), val_check_interval=10)


@row("iterable loader, `max_epochs`")
def iterable_by_epochs(folder: Path) -> str:
    plugin = Recorded(total_steps=STEPS)
    train(Net("none"), plugin=plugin, train=short(), max_epochs=6).sound()
    words = "max_epochs=6 and a loader without length.*limit_train_batches"
    return refuses(UnsupportedSetupError, words, train=short(), max_epochs=6)


@row("iterable loader, `max_epochs`, `limit_train_batches`")
def iterable_by_limited_epochs(folder: Path) -> None:
    limits = {"max_epochs": 6, "limit_train_batches": 6, "val_check_interval": 6}
    run = train(Net("cosine"), train=short(), **limits).sound()
    assert run.trainer.current_epoch == 6
    assert same_rates(lambda: Net("cosine"), run, train=short(), **limits)


@row("stateful loader")
def stateful(folder: Path) -> None:
    data = SeededLoader(length=6)
    train(Net("cosine"), train=data, max_epochs=6).sound()
    assert (data.epoch, data.position) == (6, 0)


class TakesIterator(Net):
    """A training step that fetches its batch itself."""

    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)

    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **{**kwargs, "batch_size": 16})


@row("`training_step(self, dataloader_iter)`")
def takes_iterator(folder: Path) -> None:
    with pytest.warns(UserWarning, match="dataloader_iter"):
        by_steps = train(TakesIterator("cosine"), max_steps=36).sound()
        assert same_rates(lambda: TakesIterator("cosine"), by_steps, max_steps=36)
        by_epochs = train(TakesIterator("cosine"), enable_progress_bar=True, **EPOCHS).sound()
        assert same_rates(lambda: TakesIterator("cosine"), by_epochs, **EPOCHS)
    assert by_epochs.trainer.current_epoch == 6
    assert by_epochs.model.batches == 24
