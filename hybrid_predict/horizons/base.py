"""What a horizon rule is: how far to forecast each tensor, from what verification measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class AbstractHorizon(ABC):
    """Decides per tensor how many optimizer updates a forecast spans.

    Subclasses are final, frozen dataclasses of hyperparameters. The state is a list of floats, one
    per tensor, and every method is pure.
    """

    @abstractmethod
    def init(self, kinds: Sequence[str]) -> list[float]:
        """The first state, for tensors of the given kinds."""

    @abstractmethod
    def horizons(self, state: Sequence[float]) -> list[float]:
        """Horizon per tensor, in optimizer updates, at least 0."""

    @abstractmethod
    def update(
        self, state: Sequence[float], alignments: Sequence[float], kinds: Sequence[str]
    ) -> list[float]:
        """The state after a forecast whose alignments, in [-1, 1], were measured."""

    @abstractmethod
    def reject(self, state: Sequence[float], kinds: Sequence[str]) -> list[float]:
        """The state after a rejected forecast."""
