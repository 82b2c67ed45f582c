"""Paths that users give, files read and replaced as a whole, and text for any terminal."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from errno import EEXIST, EFBIG, EINVAL
from os import PathLike
from pathlib import Path
from uuid import uuid4

from hybrid_predict.errors import ConfigError

_BLANKS = str.maketrans("\n\r\t\N{NO-BREAK SPACE}", "    ")


def printable(text: object) -> str:
    """Return text on one line, with ``?`` for every character that a terminal does not print.

    Control characters could move the cursor, or change colours and the window's title; lone
    surrogates cannot be encoded.
    """
    return "".join(c if c.isprintable() else "?" for c in str(text).translate(_BLANKS))


@contextmanager
def named(argument: str, expected: str, path: str | Path, further: str = "") -> Iterator[None]:
    """Turn an error of the system inside the block into a ConfigError that names the path.

    ``argument`` is the name of the argument that gave it, and ``further`` ends the remedy.
    """
    try:
        yield
    except OSError as error:
        remedy = f"The system says: {error.strerror or error}.{further}"
        raise ConfigError(argument, expected, str(path), remedy) from error


def given_path(argument: str, name: str | PathLike[str]) -> Path:
    """Return the path that an argument names; ``~`` is the home folder.

    Raises:
        ConfigError: If no file and no folder can have that name.
    """
    if not str(name) or "\0" in str(name):
        raise ConfigError(argument, "the name of a file or folder", str(name))
    return Path(os.path.expanduser(name))


def read_regular(path: Path, argument: str, most: float = math.inf) -> bytes:
    """Return what a regular file of at most ``most`` bytes holds.

    Raises:
        ConfigError: If it cannot be read, is larger, or is a pipe or a device. A pipe waits for a
            writer, and a device may have no end.
    """
    with named(argument, "a file that can be read", path):
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(EINVAL, "it is no regular file")
        if found.st_size > most:
            raise OSError(EFBIG, f"it is larger than {most:,} bytes")
        return path.read_bytes()


def writing(path: Path, argument: str = "folder") -> AbstractContextManager[None]:
    """Name the file that cannot be written inside the block."""
    kept = " What was written before is kept."
    return named(argument, "a file that can be written", path, kept)


def replace_text(path: Path, text: str, argument: str = "folder") -> Path:
    """Write a text file, complete or not at all; never through a link, nor over a device.

    Raises:
        ConfigError: If the file cannot be written, or what is in its place is not a regular file.
    """
    draft = path.parent / f".{path.name}.{uuid4().hex[:8]}.part"
    with writing(path, argument):
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(EEXIST, "a link, a folder or a device has that name", str(path))
        try:
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
            return draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
