"""Yardsticks that others made: plain training and the plug-in by their published recipes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.yardsticks.lightbench import LIGHTBENCH
from benchmarks.yardsticks.nanogpt import nanogpt
from benchmarks.yardsticks.plan import Yardstick

NAMES = ("nanogpt", "lightbench")
"""Yardsticks in order of importance."""


def yardsticks(text: Path | None = None) -> dict[str, Yardstick]:
    """Return them by name; ``text`` is a file for `nanogpt`."""
    return {y.name: y for y in (nanogpt(text), LIGHTBENCH)}
