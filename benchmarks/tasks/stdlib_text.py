"""Byte-level text task: the source text of Python's own standard library.

The text ships with every full Python installation, so nothing is downloaded. It differs a little
between Python versions; `StdlibText.sha256` identifies the bytes that a result was measured on.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hybrid_predict.errors import ConfigError

# Installed packages, tests and tools, which differ between distributions of the same Python.
_OPTIONAL_FOLDERS = "site-packages dist-packages test tests idlelib lib2to3 ensurepip turtledemo"
# Generated tables: they are easy to predict and would dominate the loss.
_TABLE_FOLDERS = "encodings pydoc_data"
_EXCLUDED_FOLDERS = {"__pycache__", *_OPTIONAL_FOLDERS.split(), *_TABLE_FOLDERS.split()}
# The build's own settings, which differ between machines.
_BUILD_PREFIXES = ("config-", "_sysconfigdata")

_VALIDATION_EVERY = 10
_MIN_BYTES = 1_000_000


@dataclass(frozen=True)
class StdlibText:
    """Source text of the standard library, split by file into training and validation bytes.

    Attributes:
        train: Training bytes, uint8 of shape [num_train_bytes].
        val: Validation bytes, uint8 of shape [num_val_bytes], from other files than `train`.
        sha256: Hex digest over the training bytes followed by the validation bytes.
        num_files: Number of files used.
        num_skipped: Number of files that could not be read.
    """

    train: torch.Tensor
    val: torch.Tensor
    sha256: str
    num_files: int
    num_skipped: int = 0


def load_stdlib_text(max_bytes: int = 12_000_000) -> StdlibText:
    """Loads the standard library's source text, deterministically for a given Python.

    Args:
        max_bytes: Upper limit on training and validation bytes together.

    Returns:
        The text: files in path order until the limit, every tenth of them for validation.

    Raises:
        ConfigError: `max_bytes` is too small, or too little source text is installed.
    """
    if max_bytes < _MIN_BYTES:
        raise ConfigError("max_bytes", f"at least {_MIN_BYTES}", max_bytes)
    root = Path(sysconfig.get_path("stdlib"))
    text = read_source(root, _source_files(root), max_bytes)
    total = text.train.numel() + text.val.numel()
    if total < _MIN_BYTES:
        raise ConfigError(
            argument="standard library source text",
            expected=f"at least {_MIN_BYTES} bytes of .py files under {root}",
            got=f"{total} bytes in {text.num_files} files ({text.num_skipped} unreadable)",
            remedy="Use a Python installation that ships its standard library as .py files.",
        )
    return text


def read_source(root: Path, paths: Iterable[Path], max_bytes: int) -> StdlibText:
    """Reads files in path order until there are enough bytes, every tenth file for validation.

    Args:
        root: Folder that the order is relative to.
        paths: Files below it, in any order.
        max_bytes: Upper limit on training and validation bytes together.

    Returns:
        The text; files that could not be read are counted and left out.
    """
    train, val = bytearray(), bytearray()
    num_files = num_skipped = 0
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        if len(train) + len(val) >= max_bytes:
            break
        try:
            content = path.read_bytes()
        except OSError:
            num_skipped += 1
            continue
        part = val if num_files % _VALIDATION_EVERY == _VALIDATION_EVERY - 1 else train
        part += content[: max_bytes - len(train) - len(val)]
        num_files += 1
    digest = hashlib.sha256(train)
    digest.update(val)
    return StdlibText(
        train=_as_tensor(train),
        val=_as_tensor(val),
        sha256=digest.hexdigest(),
        num_files=num_files,
        num_skipped=num_skipped,
    )


def _as_tensor(data: bytearray) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def sample_batch(
    data: torch.Tensor, batch_size: int, context: int, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws random windows with their next bytes as targets.

    Args:
        data: Bytes to draw from, uint8 of shape [num_bytes].
        batch_size: Number of windows, B.
        context: Bytes in each window, T.
        generator: Source of randomness on the data's device; the global one if None.

    Returns:
        Inputs and targets, both int64 of shape [B, T], on the data's device.
    """
    starts = torch.randint(
        data.numel() - context, (batch_size,), generator=generator, device=data.device
    )
    return _windows(data, starts, context)


def validation_batches(
    data: torch.Tensor, batch_size: int, context: int, num_batches: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cuts a fixed set of evenly spaced windows, the same on every call.

    Args:
        data: Bytes to cut from, uint8 of shape [num_bytes].
        batch_size: Number of windows in a batch, B.
        context: Bytes in each window, T.
        num_batches: Number of batches.

    Returns:
        Pairs of inputs and targets, both int64 of shape [B, T].
    """
    count = batch_size * num_batches
    starts = (
        torch.arange(count, device=data.device) * (data.numel() - context - 1) // max(count - 1, 1)
    )
    return [_windows(data, part, context) for part in starts.view(num_batches, batch_size)]


def _source_files(root: Path) -> Iterator[Path]:
    """Yields the standard library's Python files, in no particular order."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _EXCLUDED_FOLDERS and not name.startswith(_BUILD_PREFIXES)
        ]
        for name in names:
            if name.endswith(".py") and not name.startswith(_BUILD_PREFIXES):
                yield Path(folder, name)


def _windows(
    data: torch.Tensor, starts: torch.Tensor, context: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns windows from their first positions, and the bytes that follow each position."""
    within = torch.arange(context + 1, device=data.device)
    windows = data[starts[:, None] + within].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
