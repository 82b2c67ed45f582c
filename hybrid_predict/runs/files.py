"""Atomic replacement of files."""

from __future__ import annotations

import os
import stat
from errno import EEXIST
from pathlib import Path
from uuid import uuid4


def replace_text(path: Path, text: str) -> Path:
    """Write a text file atomically; never through a link, nor over a device.

    Raises:
        OSError: If the file cannot be written, or what is in its place is not a regular file.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(EEXIST, "a link, a folder or a device has that name", str(path))
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")
    try:
        draft.touch(exist_ok=False)
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
