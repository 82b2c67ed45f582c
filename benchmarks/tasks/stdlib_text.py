"""Bytes of text: the source text of Python's own standard library, and windows of bytes.

The text ships with every full Python installation, so nothing is downloaded. It differs a little
between Python versions; `StdlibText.sha256` identifies the bytes that a result was measured on.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

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
_MAX_BYTES = 12_000_000


@dataclass(frozen=True)
class StdlibText:
    """Text that is split by file into training and validation bytes, uint8 of shape [bytes].

    The digest is over the training bytes followed by the validation bytes.
    """

    train: Tensor
    val: Tensor
    sha256: str

    @staticmethod
    def of(train: bytearray, val: bytearray) -> StdlibText:
        """Return the text with these bytes."""
        first, second = (
            torch.frombuffer(x, dtype=torch.uint8) if x else torch.empty(0).byte()
            for x in (train, val)
        )
        return StdlibText(first, second, hashlib.sha256(train + val).hexdigest())


@lru_cache(maxsize=1)
def source_text() -> StdlibText:
    """Return the standard library's source text, the same on every call for a given Python."""
    root = Path(sysconfig.get_path("stdlib"))
    text = read_source(root, _source_files(root), _MAX_BYTES)
    if (total := len(text.train) + len(text.val)) < _MIN_BYTES:
        raise ConfigError(
            "standard library source text",
            f"at least {_MIN_BYTES} bytes of .py files under {root}",
            f"{total} bytes",
            "Use a Python installation that ships its standard library as .py files.",
        )
    return text


def read_source(root: Path, paths: Iterable[Path], max_bytes: int) -> StdlibText:
    """Read files in path order until there are enough bytes, every tenth file for validation.

    Files that cannot be read are left out.
    """
    train = bytearray()
    val = bytearray()
    count = 0
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        if len(train) + len(val) >= max_bytes:
            break
        try:
            content = path.read_bytes()
        except OSError:
            continue
        part = val if count % _VALIDATION_EVERY == _VALIDATION_EVERY - 1 else train
        part += content[: max_bytes - len(train) - len(val)]
        count += 1
    return StdlibText.of(train, val)


def _source_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _EXCLUDED_FOLDERS and not name.startswith(_BUILD_PREFIXES)
        ]
        for name in names:
            if name.endswith(".py") and not name.startswith(_BUILD_PREFIXES):
                yield Path(folder, name)


def random_windows(
    data: Tensor, count: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return random windows and the bytes that follow, both int64 of shape [count, context]."""
    last = data.numel() - context
    starts = torch.randint(last, (count,), generator=generator, device=data.device)
    return _windows(data, starts, context)


def fixed_windows(
    data: Tensor, count: int, context: int, batches: int
) -> list[tuple[Tensor, Tensor]]:
    """Return batches of evenly spaced windows, the same on every call; see `random_windows`."""
    total = count * batches
    last = data.numel() - context - 1
    starts = torch.arange(total, device=data.device) * last // max(total - 1, 1)
    return [_windows(data, part, context) for part in starts.view(batches, count)]


def _windows(data: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    within = torch.arange(context + 1, device=data.device)
    windows = data[starts[:, None] + within].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
