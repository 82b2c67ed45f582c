"""Reads files of JSON lines that may be damaged, or something else than a file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from errno import EINVAL
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

LONGEST = 2**20
"""Most bytes of a line; longer ones are damaged."""

_DEEPEST = 50
"""Most levels of lists and mappings in a line."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read its bytes.

    Raises:
        OSError: If it cannot be read, or is a pipe, a device or a folder; none is waited for.
    """
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(EINVAL, "it is no regular file", str(path))
    return os.fdopen(number, "rb")


def mappings(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the JSON object on every line of a file, or None for a line that holds none.

    Raises:
        OSError: As :func:`open_regular` does.
    """
    with open_regular(path) as file:
        while line := file.readline(LONGEST):
            whole = line.endswith(b"\n") or len(line) < LONGEST
            while not whole:
                rest = file.readline(LONGEST)
                whole = rest.endswith(b"\n") or not rest
                line = b""
            yield mapping(line)


def mapping(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if it holds none, or one that is nested too deep."""
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _flat(found, _DEEPEST) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _flat(value: Any, levels: int) -> bool:
    """Whether a value has at most so many levels, so that it can be printed and copied."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    return levels > 0 and all(_flat(each, levels - 1) for each in value)
