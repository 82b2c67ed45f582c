"""What a predictor is: hyperparameters in a frozen object, history in a separate state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybrid_predict.model.deltas import WeightDelta
from hybrid_predict.tensors import AbstractBackend

if TYPE_CHECKING:
    from hybrid_predict.forecast.window import Reading


@dataclass
class PredictorState:
    """The history of one group of tensors.

    Args:
        names: Names of the K parameters.
        arrays: Lists of arrays by name, each one array per parameter, shaped like it.
        count: Displacements observed so far.
        numbers: What a predictor that learns has fitted, numbers by parameter name.
    """

    names: tuple[str, ...]
    arrays: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0
    numbers: dict[str, list[float]] = field(default_factory=dict)


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

    def directions(self, state: PredictorState) -> list[list[Any]]:
        """Directions whose lengths are fitted, J lists of one array per parameter; none by default.

        They are per unit of the learning rate, and may be the history's own arrays.
        """
        return []

    def fit(self, state: PredictorState, reading: Reading) -> None:  # noqa: B027
        """Learn from one closed window; nothing by default.

        Args:
            state: The history, changed in place.
            reading: How the :meth:`directions` of the window's start compare with the displacements
                that followed.
        """
