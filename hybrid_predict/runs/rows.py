"""Finished runs in a file, so that a command can continue after a stop."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from hybrid_predict.runs.files import read_regular, writing
from hybrid_predict.runs.runtime import finite

RUNS = "runs.jsonl"
"""Name of the file in an output folder."""

Row = dict[str, Any]
Key = TypeVar("Key")

logger = logging.getLogger(__name__)


class Rows(Generic[Key]):
    """Finished runs by key, one JSON line each, in a file that need not exist.

    A damaged line, as after a crash, is skipped with a warning; its run is trained again. A line
    from which ``key`` cannot return the run's key counts as damaged.
    """

    def __init__(self, path: Path, key: Callable[[Mapping[str, Any]], Key]) -> None:
        self.path = path
        self.done: dict[Key, Row] = {}
        self._key = key
        data = read_regular(path, "folder") if os.path.lexists(path) else b""
        text = data.decode(errors="replace")
        self._cut_off = bool(text) and not text.endswith("\n")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
                self.done[key(row)] = row
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                logger.warning("%s, line %d is not a finished run; it is skipped.", path, number)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row, and wait until it is on the disk; numbers that are not finite become None.

        Raises:
            ConfigError: If the file cannot be written; the rows before it are kept.
        """
        kept: Row = finite(row)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._cut_off + json.dumps(kept, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._cut_off = False
        self.done[self._key(kept)] = kept

    def start_from(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Append rows of another file whose runs are not here yet; return their number."""
        new = [row for row in rows if self._key(row) not in self.done]
        for row in new:
            self.add(row)
        return len(new)

    def clear(self) -> None:
        """Delete all rows and the file."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
        self.done = {}
        self._cut_off = False
