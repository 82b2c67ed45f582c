"""The same horizon for every tensor, always."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid_predict.errors import ConfigError
from hybrid_predict.horizons.base import AbstractHorizon


@dataclass(frozen=True, kw_only=True)
class FixedHorizon(AbstractHorizon):
    """A constant horizon.

    Args:
        updates: The horizon in optimizer updates, at least 0 and finite.

    Raises:
        ConfigError: If ``updates`` is negative or not finite.
    """

    updates: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.updates) and self.updates >= 0):
            raise ConfigError("updates", "a finite number, at least 0", self.updates)

    def init(self, kinds: Sequence[str]) -> list[float]:
        """The horizon itself, per tensor."""
        return [self.updates for _ in kinds]

    def horizons(self, state: Sequence[float]) -> list[float]:
        """The horizon itself, per tensor."""
        return list(state)

    def update(
        self, state: Sequence[float], alignments: Sequence[float], kinds: Sequence[str]
    ) -> list[float]:
        """Unchanged."""
        return list(state)

    def reject(self, state: Sequence[float], kinds: Sequence[str]) -> list[float]:
        """Unchanged."""
        return list(state)
