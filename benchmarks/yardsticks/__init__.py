"""Yardsticks that others made: plain training and the plug-in by their published recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.yardsticks.algoperf import ALGOPERF
from benchmarks.yardsticks.deepobs import DEEPOBS
from benchmarks.yardsticks.lightbench import LIGHTBENCH
from benchmarks.yardsticks.nanogpt import nanogpt
from benchmarks.yardsticks.small import SMALL
from benchmarks.yardsticks.study import Study, Yardstick

NAMES = ("nanogpt", "lightbench", "algoperf", "deepobs")
"""Yardsticks with tasks and arms, in order of importance."""


def yardsticks(text: Path | None = None) -> dict[str, Yardstick]:
    """Return them by name; ``text`` is a file for `nanogpt`."""
    return {y.name: y for y in (nanogpt(text), LIGHTBENCH, ALGOPERF, DEEPOBS)}


def studies(text: Path | None = None) -> dict[str, Study[Any]]:
    """Return what can be measured by name, with the protocols of forecasts, `small`."""
    return {**{name: y.study for name, y in yardsticks(text).items()}, SMALL.name: SMALL}
