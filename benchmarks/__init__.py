"""Measures what the plug-in gains and what it costs."""

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "docs" / "results"
"""Folder of the committed results files."""
