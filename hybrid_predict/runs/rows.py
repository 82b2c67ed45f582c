"""Finished runs in a file, so that whatever made them goes on where it was stopped."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from hybrid_predict.runs.runtime import finite, writing

RUNS = "runs.jsonl"
"""What the file is called in an output folder."""

Row = dict[str, Any]
Key = TypeVar("Key")

logger = logging.getLogger(__name__)


class Rows(Generic[Key]):
    """Finished runs, one JSON line each.

    A line that is no finished run, as after a crash, is left out and told of; its run is made
    again.

    Args:
        path: The file; need not exist.
        key: What tells runs apart, taken from a row; raises LookupError, TypeError, ValueError
            or AttributeError where a row is none.

    Attributes:
        done: The rows by key; of several with one key the last.
    """

    def __init__(self, path: Path, key: Callable[[Mapping[str, Any]], Key]) -> None:
        self.path = path
        self.done: dict[Key, Row] = {}
        self._key = key
        text = path.read_text("utf-8", errors="replace") if path.exists() else ""
        self._torn = bool(text) and not text.endswith("\n")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
                self.done[key(row)] = row
            except (ValueError, LookupError, TypeError, AttributeError):
                logger.warning("%s, line %d is no finished run; it is left out.", path, number)

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row, on the disk before this returns; numbers that JSON cannot hold become None.

        Raises:
            ConfigError: If the system refuses; the rows before it are kept.
        """
        kept: Row = finite(row)
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._torn + json.dumps(kept, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._torn = False
        self.done[self._key(kept)] = kept

    def start_from(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Keep rows of an earlier file; runs that are here already stay.

        Returns:
            How many were new.
        """
        new = [row for row in rows if self._key(row) not in self.done]
        for row in new:
            self.add(row)
        return len(new)

    def clear(self) -> None:
        """Forget all of them.

        Raises:
            ConfigError: If the system refuses.
        """
        with writing(self.path):
            self.path.unlink(missing_ok=True)
        self.done, self._torn = {}, False
