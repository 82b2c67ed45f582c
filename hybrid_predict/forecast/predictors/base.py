"""The interface of a predictor: hyperparameters in a frozen object, history in a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.torch.deltas import WeightDelta

if TYPE_CHECKING:
    from hybrid_predict.forecast.window import Reading


@final
@dataclass
class PredictorState:
    """The history of a group of tensors.

    Args:
        names: Names of the K parameters.
        arrays: Lists of K arrays by name, each shaped like its parameter.
        count: Number of displacements observed so far.
        numbers: Numbers that the predictor has fitted, by parameter name.
    """

    names: tuple[str, ...]
    arrays: dict[str, list[Any]] = field(default_factory=dict)
    count: int = 0
    numbers: dict[str, list[float]] = field(default_factory=dict)


class AbstractPredictor(ABC):
    """Forecasts the movement of the weights from the displacements seen so far.

    Subclasses are frozen dataclasses of hyperparameters, and should be final; the history is in the
    :class:`PredictorState` that :meth:`init` makes.
    """

    gated: bool = True
    """Whether predicted steps need skill; only benchmarks set it to False."""

    @abstractmethod
    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """Return an empty history for the parameters ``like``, named ``names``."""

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
        """Forecast the movement of one predicted step; neither changes nor copies the history.

        Args:
            state: The history.
            rates: Current learning rate of each parameter, numbers or 0-dim arrays.
        """

    def directions(self, state: PredictorState) -> list[list[Any]]:
        """Return J lists of K directions whose lengths are to be fitted; none by default.

        They are per unit of the learning rate, and may be arrays of the history itself.
        """
        return []

    def fit(self, state: PredictorState, reading: Reading) -> None:  # noqa: B027
        """Learn from a closed window; does nothing by default.

        Args:
            state: The history, changed in place.
            reading: Inner products of the :meth:`directions` at the start of the window with the
                displacements that followed.
        """

    def square(self, state: PredictorState, reading: Reading) -> float:
        """Return the squared length of the next forecast, per unit of the learning rate.

        By default it is that of the forecast at the start of the window.

        Args:
            state: The history, after :meth:`fit`.
            reading: The last closed window, whose directions stand for those of the next forecast.
        """
        return reading.square
