"""What a predictor is: hyperparameters in a frozen object, history in a separate state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_predict.model.deltas import WeightDelta
from hybrid_predict.tensors import AbstractBackend


@dataclass
class PredictorState:
    """The history of one group of tensors.

    Args:
        names: Names of the K parameters.
        arrays: Lists of arrays by name, each one array per parameter, shaped like it.
        count: Displacements observed so far.
    """

    names: tuple[str, ...]
    arrays: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0


class AbstractPredictor(ABC):
    """Forecasts the movement of the weights from the displacements seen so far.

    Subclasses are final, frozen dataclasses of hyperparameters; all history lives in the
    :class:`PredictorState` that :meth:`init` makes.
    """

    gated: bool = True
    """Whether predicted steps need skill; only benchmarks switch that off."""

    @abstractmethod
    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An empty history for the parameters ``like``, named ``names``."""

    @abstractmethod
    def observe(
        self,
        state: PredictorState,
        displacement: Sequence[Any],
        backend: AbstractBackend[Any],
    ) -> None:
        """Add the displacement of one full step to the history.

        Args:
            state: The history, changed in place.
            displacement: Weights after the (corrected) update minus weights right before it, per
                unit of the learning rate, one array per parameter; may be overwritten.
            backend: Kernels for these arrays.
        """

    @abstractmethod
    def forecast(self, state: PredictorState, rates: Sequence[Any]) -> WeightDelta:
        """The movement that one predicted step makes.

        Pure: it neither changes the history nor copies it.

        Args:
            state: The history.
            rates: Current learning rate of each parameter, numbers or 0-dim arrays.
        """
