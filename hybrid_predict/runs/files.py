"""Paths that users give, files that are replaced as a whole, and text for any terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST
from os import PathLike
from pathlib import Path

from hybrid_predict.errors import ConfigError

_BLANKS = str.maketrans("\n\r\t\N{NO-BREAK SPACE}", "    ")


@contextmanager
def named(
    path: str | Path, expected: str = "a file that can be written", argument: str = "folder"
) -> Iterator[None]:
    """Turn an error of the system inside the block into a ConfigError about an argument."""
    try:
        yield
    except OSError as error:
        remedy = f"The system says: {error.strerror or error}."
        raise ConfigError(argument, expected, str(path), remedy) from error


def given_path(name: str | PathLike[str]) -> Path:
    """Return the path that a user has given; ``~`` is the home folder."""
    return Path(os.path.expanduser(name))


def replace_text(path: Path, text: str, argument: str = "folder") -> Path:
    """Write a text file, complete or not at all.

    Raises:
        ConfigError: If the file cannot be written, or a folder or a device has its name.
    """
    draft = path.parent / f".{path.name}.part"
    with named(path, argument=argument):
        if path.exists() and not path.is_file():
            raise OSError(EEXIST, "a folder or a device has that name")
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        return draft.replace(path)


def printable(text: object) -> str:
    """Return text on one line, with ``?`` for every character that a terminal does not print."""
    return "".join(c if c.isprintable() else "?" for c in str(text).translate(_BLANKS))
