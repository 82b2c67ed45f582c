"""The example that ``hybrid-predict demo`` audits: a byte-level GPT on Python's own source text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybrid_predict.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the command's options change in the training of the ``full`` arm."""

    steps: int = 600
    learning_rate: float = 0.008
    validation_windows: int = 512

    def __post_init__(self) -> None:
        if self.steps < 20:
            raise ConfigError("steps", "an integer, at least 20", self.steps)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError("learning_rate", "a finite number above 0", self.learning_rate)


FULL = Recipe(steps=1800, learning_rate=0.0113, validation_windows=2048)
"""Three times the steps, with the learning rate that is best for them."""
