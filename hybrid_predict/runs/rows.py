"""Finished runs in a file, so that a command can continue after a stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from hybrid_predict.runs.files import named, writing
from hybrid_predict.runs.runtime import append_json, finite, read_json_lines

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
        with named("folder", "a file that can be read", path):
            rows = list(read_json_lines(path)) if path.exists() else []
        for number, row in enumerate(rows, 1):
            try:
                self.done[key(row)] = row
            except (ValueError, LookupError, TypeError, AttributeError):
                logger.warning("%s, line %d is not a finished run; it is skipped.", path, number)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; numbers that are not finite become None.

        Raises:
            ConfigError: If the file cannot be written; the rows before it are kept.
        """
        kept: Row = finite(row)
        with writing(self.path):
            append_json(self.path, kept)
        self.done[self._key(kept)] = kept

    def clear(self) -> None:
        """Delete all rows and the file."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
        self.done = {}
