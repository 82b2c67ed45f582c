"""Finished arms, kept in the output folder so that an audit can go on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_predict.errors import ConfigError
from hybrid_predict.report.history import RunHistory
from hybrid_predict.runtime import finite, write_json

_REMEDY = "Choose another folder, or delete this one."


class RunStore:
    """Finished arms as ``runs/<arm>-seed<k>.json``.

    Args:
        folder: The output folder; need not exist until something is saved.
        depends_on: What finished arms depend on, as plain data.
    """

    def __init__(self, folder: Path, depends_on: Mapping[str, Any]) -> None:
        self._folder = folder
        self._depends_on = dict(depends_on)
        text = json.dumps(self._depends_on, sort_keys=True)
        self.digest = hashlib.sha256(text.encode("utf-8")).hexdigest()

    def load(self) -> dict[tuple[str, int], tuple[dict[str, Any], RunHistory | None]]:
        """The finished arms, by name and seed, each with the hybrid run's history.

        Raises:
            ConfigError: If one of them was trained under other conditions or cannot be read.
        """
        found = {}
        for path in sorted((self._folder / "runs").glob("*-seed*.json")):
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                key = (saved["run"]["arm"], saved["run"]["seed"])
                digest, before, state = saved["digest"], saved["depends_on"], saved["history"]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    str(self._folder), "finished arms that can be read", path.name, _REMEDY
                ) from error
            if digest != self.digest:
                raise ConfigError(
                    str(self._folder),
                    "finished arms of this same audit",
                    f"arms with other {', '.join(self._differences(before))}",
                    _REMEDY,
                )
            history = RunHistory() if state else None
            if history is not None:
                history.load_state_dict(state)
            found[key] = (saved["run"], history)
        return found

    def save(self, run: Mapping[str, Any], history: RunHistory | None) -> None:
        """Keep a finished arm."""
        folder = self._folder / "runs"
        folder.mkdir(exist_ok=True)
        saved = {
            "digest": self.digest,
            "depends_on": self._depends_on,
            "run": run,
            "history": history.state_dict() if history is not None else None,
        }
        write_json(finite(saved), folder / f"{run['arm']}-seed{run['seed']}.json")

    def _differences(self, before: Mapping[str, Any]) -> list[str]:
        names = sorted(self._depends_on.keys() | before.keys())
        return [name for name in names if self._depends_on.get(name) != before.get(name)]
