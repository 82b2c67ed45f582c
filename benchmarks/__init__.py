"""Measures what the plug-in gains and what it costs."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
"""Folder of the committed results files."""


def load(name: str) -> dict[str, Any]:
    """Read a committed results file."""
    results: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return results
