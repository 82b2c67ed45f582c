"""Measures what the plug-in gains and what it costs."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
"""Folder of the committed results files."""


def load(name: str, folder: Path = RESULTS) -> Any:
    """Read a results file, by default a committed one; that of rows has one per line."""
    text = (folder / name).read_text("utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)
