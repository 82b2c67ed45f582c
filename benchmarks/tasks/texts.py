"""Texts as bytes, split into training and held-out parts; they come with Python.

They differ a little between versions; `Text.sha256` names the bytes that a result was measured on.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from hybrid_predict.errors import ConfigError

# They differ between distributions of the same Python.
_OPTIONAL_FOLDERS = "site-packages dist-packages test tests idlelib lib2to3 ensurepip turtledemo"
# Generated tables: they are easy to predict and would dominate the loss.
_TABLE_FOLDERS = "encodings pydoc_data"
_EXCLUDED_FOLDERS = {"__pycache__", *_OPTIONAL_FOLDERS.split(), *_TABLE_FOLDERS.split()}
# The build's own settings, which differ between machines.
_BUILD_PREFIXES = ("config-", "_sysconfigdata")

CHARACTERS = 1_115_394  # of tiny Shakespeare, as in nanoGPT; other texts are cut to it


@dataclass(frozen=True)
class Text:
    """Training and validation bytes, uint8 of shape [bytes]; the digest is over both, in order."""

    train: Tensor
    val: Tensor
    sha256: str

    @staticmethod
    def of(train: bytearray, val: bytearray) -> Text:
        shown, held = (torch.frombuffer(part, dtype=torch.uint8) for part in (train, val))
        return Text(shown, held, hashlib.sha256(train + val).hexdigest())


@lru_cache(maxsize=1)
def source_text() -> Text:
    """Return the standard library's source text, the same on every call for a given Python."""
    root = Path(sysconfig.get_path("stdlib"))
    return _read(root, (path for path in root.rglob("*.py") if _is_shared(path, root)), 12_000_000)


def _is_shared(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    built = any(part.startswith(_BUILD_PREFIXES) for part in parts)
    return _EXCLUDED_FOLDERS.isdisjoint(parts) and not built


def _read(root: Path, paths: Iterable[Path], max_bytes: int) -> Text:
    """Read files until there are enough bytes, every tenth file for validation."""
    train = bytearray()
    val = bytearray()
    count = 0
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        if (room := max_bytes - len(train) - len(val)) <= 0:
            break
        try:
            content = path.read_bytes()
        except OSError:
            continue
        count += 1
        part = train if count % 10 else val
        part += content[:room]
    return Text.of(train, val)


@lru_cache(maxsize=1)
def reference_text() -> Text:
    """The English reference text behind Python's ``help()``, every fourth topic for validation."""
    from pydoc_data.topics import topics

    parts = (bytearray(), bytearray())
    for k, name in enumerate(sorted(topics), 1):
        parts[k % 4 == 0].extend(topics[name].encode())
    return Text.of(*parts)


@lru_cache(maxsize=2)
def characters(path: Path | None) -> tuple[Text, int]:
    """Return a text file (None: `source_text`) as numbers of its distinct bytes, and their count.

    Raises:
        ConfigError: If the file cannot be read or is too short.
    """
    try:
        content = path.read_bytes() if path else source_text().train.numpy().tobytes()
    except OSError as error:
        raise ConfigError("text", "a text file", str(path), "Check the path.") from error
    content = content[:CHARACTERS]
    if len(content) < 1000:
        raise ConfigError("text", "at least 1,000 characters", len(content), "Take a longer text.")
    known = bytes(sorted(set(content)))
    coded = bytearray(content.translate(bytes.maketrans(known, bytes(range(len(known))))))
    cut = int(0.9 * len(coded))
    return Text.of(coded[:cut], coded[cut:]), len(known)
