"""Files that are replaced as a whole, and errors that name the file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from errno import EEXIST
from pathlib import Path
from uuid import uuid4

from hybrid_predict.errors import ConfigError


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


def writing(path: Path, argument: str = "folder") -> AbstractContextManager[None]:
    """Name the file that cannot be written inside the block."""
    kept = " What was written before is kept."
    return named(argument, "a file that can be written", path, kept)


def replace_text(path: Path, text: str, argument: str = "folder") -> Path:
    """Write a text file, complete or not at all; never through a link, nor over a device.

    Raises:
        ConfigError: If the file cannot be written, or what is in its place is not a regular file.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")
    with writing(path, argument):
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(EEXIST, "a link, a folder or a device has that name", str(path))
        try:
            draft.touch(exist_ok=False)
            draft.write_text(text, encoding="utf-8", errors="backslashreplace")
            return draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
