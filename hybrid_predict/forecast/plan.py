"""The plan of a group of tensors: which update and which predictor it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.updates import AbstractUpdate


@final
@dataclass(frozen=True)
class Plan:
    """How a group of tensors is treated.

    Args:
        kind: Kind of the parameters.
        owner: Number of their optimizer.
        update: Corrected update, or None.
        predictor: Predictor, or None.
    """

    kind: str
    owner: int
    update: AbstractUpdate | None
    predictor: AbstractPredictor | None

    def key(self) -> list[Any]:
        """Return what a saved group must have in common with a group that loads it."""
        return [self.kind, self.owner, repr(self.update), repr(self.predictor)]
