"""The interface of a predictor: hyperparameters in a frozen object, history in a state.

It imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import Tensor

    from hybrid_predict.forecast.window import Reading
    from hybrid_predict.torch.deltas import WeightDelta


@final
@dataclass
class PredictorState:
    """The history of the displacements of a group of tensors.

    Args:
        names: Names of the K parameters.
        arrays: Lists of K tensors by name, each shaped like its parameter.
        count: Number of displacements observed so far.
        numbers: Numbers that the predictor has fitted, by parameter name.
    """

    names: tuple[str, ...]
    arrays: dict[str, list[Tensor]] = field(default_factory=dict)
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
    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        """Return an empty history.

        Args:
            names: Names of the K parameters.
            like: Their local shards.
            history: Dtype in which averages are stored, ``float32`` or ``bfloat16``; see
                `torch.lists.zeros`.
        """

    @abstractmethod
    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Add the displacement of one full step to the history, in place.

        Args:
            state: The history.
            displacement: Weights after the (corrected) update minus weights right before it, per
                unit of the learning rate, one tensor per parameter; may be overwritten.
        """

    @abstractmethod
    def forecast(self, state: PredictorState, rates: Sequence[float | Tensor]) -> WeightDelta:
        """Forecast the movement of one predicted step; neither changes nor copies the history.

        Args:
            state: The history.
            rates: Current learning rate of each parameter, numbers or 0-dim tensors.
        """

    def fitted_direction(self, state: PredictorState) -> list[Tensor]:
        """Return the K directions whose length :meth:`fit` fits; none by default.

        They are per unit of the learning rate, and may be tensors of the history itself.
        """
        return []

    def fit(self, state: PredictorState, reading: Reading) -> float:
        """Learn from a closed window, in place; by default learn nothing.

        Args:
            state: The history.
            reading: Inner products of forecast and fitted direction at the start of the window with
                the displacements that followed.

        Returns:
            The squared length of the next forecast over all tensors, per unit of the learning rate;
            by default that of the forecast at the start of the window.
        """
        return reading.square
