"""The source text of Python's standard library, as training and validation data."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hybrid_predict.errors import ConfigError

Batch = tuple[Tensor, Tensor]
"""Windows of bytes and the bytes that follow them, both int64 of shape [batch, context]."""

_LEFT_OUT = {
    *("__pycache__", "site-packages", "dist-packages"),
    *("test", "tests", "idlelib", "lib2to3", "ensurepip", "turtledemo"),  # not in every Python
    *("encodings", "pydoc_data"),  # generated tables, which are too easy to predict
}
_BUILD_PREFIXES = ("config-", "_sysconfigdata")  # settings of the build, which differ by machine

_MOST_BYTES, _FEWEST_BYTES = 12_000_000, 1_000_000


def stdlib_text() -> tuple[Tensor, Tensor]:
    """Read the standard library's source text; every Python has it, so nothing is downloaded.

    Returns:
        Training and validation bytes, uint8 of shape [bytes]. Every tenth file is for validation.

    Raises:
        ConfigError: If too little source text is installed.
    """
    root = Path(sysconfig.get_path("stdlib"))
    parts, count = (bytearray(), bytearray()), 0
    for path in sorted(_files(root), key=lambda path: path.relative_to(root).as_posix()):
        if not (room := _MOST_BYTES - sum(map(len, parts))):
            break
        try:
            content = path.read_bytes()[:room]
        except OSError:
            continue
        parts[count % 10 == 9].extend(content)
        count += 1
    if sum(map(len, parts)) < _FEWEST_BYTES:
        raise ConfigError(
            "standard library source text",
            f"at least {_FEWEST_BYTES} bytes of .py files under {root}",
            f"{sum(map(len, parts))} bytes in {count} files",
            "Use a Python installation that has its standard library as .py files.",
        )
    train, validation = (torch.frombuffer(part, dtype=torch.uint8) for part in parts)
    return train, validation


def _files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _LEFT_OUT and not name.startswith(_BUILD_PREFIXES)
        ]
        for name in names:
            if name.endswith(".py") and not name.startswith(_BUILD_PREFIXES):
                yield Path(folder, name)


class _RandomWindows(IterableDataset[Batch]):
    """An endless stream of batches of random windows, the same for the same seed."""

    def __init__(self, text: Tensor, batch_size: int, context: int, seed: int) -> None:
        self.text, self.batch_size, self.context, self.seed = text, batch_size, context, seed

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed)
        last = len(self.text) - self.context
        while True:
            starts = torch.randint(last, (self.batch_size,), generator=generator)
            yield _windows(self.text, starts, self.context)


class StdlibWindows(pl.LightningDataModule):
    """Random windows for training, and evenly spaced ones for validation.

    Args:
        train: Training bytes.
        validation: Validation bytes.
        seed: Seed of the random windows.
        validation_windows: Number of windows of a validation.
        batch_size: Windows in a batch.
        context: Bytes in a window.
    """

    def __init__(
        self,
        train: Tensor,
        validation: Tensor,
        seed: int,
        validation_windows: int,
        batch_size: int = 32,
        context: int = 64,
    ) -> None:
        super().__init__()
        self.train = _RandomWindows(train, batch_size, context, seed)
        count = validation_windows // batch_size * batch_size
        starts = torch.arange(count) * (len(validation) - context - 1) // max(count - 1, 1)
        self.batches = [_windows(validation, part, context) for part in starts.view(-1, batch_size)]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the endless stream."""
        return DataLoader(self.train, batch_size=None)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the fixed batches."""
        return DataLoader(self.batches, batch_size=None)  # type: ignore[arg-type]


def _windows(text: Tensor, starts: Tensor, context: int) -> Batch:
    windows = text[starts[:, None] + torch.arange(context + 1)].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
