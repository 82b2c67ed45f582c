"""What a predictor is: hyperparameters in a frozen object, history in a separate state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hybrid_predict.backends import AbstractBackend
from hybrid_predict.errors import CheckpointError
from hybrid_predict.parameters import WeightDelta


@dataclass
class PredictorState:
    """The history of one group of tensors.

    Args:
        names: Names of the K parameters.
        average: One array per parameter, shaped like it: what the predictor averages.
        direction: Where forecasts point; the same list as ``average`` unless the predictor keeps
            another.
        count: Full steps observed so far.
        statistics: Small arrays by name that are not shaped like the parameters, the same on all
            ranks.
        stretch: Factors that follow from the parameters' shapes alone, one each, if any.
        unit: A length that follows from them, if any.
    """

    names: tuple[str, ...]
    average: list[Any]
    direction: list[Any]
    count: int = 0
    statistics: dict[str, Any] = field(default_factory=dict)
    stretch: tuple[float, ...] = ()
    unit: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The history as plain containers of arrays."""
        own = self.direction is not self.average
        return {
            "names": list(self.names),
            "count": self.count,
            "average": list(self.average),
            "direction": list(self.direction) if own else None,
            "statistics": dict(self.statistics),
        }

    def load_state_dict(self, state: dict[str, Any], backend: AbstractBackend[Any]) -> None:
        """Continue from a saved history.

        Raises:
            CheckpointError: If it belongs to other parameters.
        """
        if tuple(state["names"]) != self.names:
            raise CheckpointError(
                f"state: expected the history of {list(self.names)[:3]}..., got "
                f"{state['names'][:3]}... The checkpoint belongs to another model or configuration."
            )
        alone, known = self.direction is self.average, state["statistics"]
        if alone != (state["direction"] is None) or self.statistics.keys() != known.keys():
            raise CheckpointError(
                "state: the checkpoint's history comes from another predictor. "
                "Resume with the predictors of the saved run."
            )
        shapes = [tuple(x.shape) for x in self.average]
        for part in (state["average"], state["direction"] or state["average"]):
            if [tuple(x.shape) for x in part] != shapes:
                raise CheckpointError(
                    f"state: expected a history of shapes {shapes[:3]}..., got "
                    f"{[tuple(x.shape) for x in part][:3]}... "
                    "The checkpoint belongs to another model."
                )
        for name, own in self.statistics.items():
            if own.shape != known[name].shape:
                raise CheckpointError(
                    f"state: expected {name} of shape {tuple(own.shape)}, got "
                    f"{tuple(known[name].shape)}. The checkpoint belongs to another model."
                )
        self.count = int(state["count"])
        self.average = backend.copy(self.average, state["average"])
        if state["direction"] is None:
            self.direction = self.average
        else:
            self.direction = backend.copy(self.direction, state["direction"])
        for name, own in self.statistics.items():
            (self.statistics[name],) = backend.copy([own], [known[name]])


class AbstractPredictor(ABC):
    """Forecasts a displacement from the gradients and displacements seen so far.

    Subclasses are final, frozen dataclasses of hyperparameters; all history lives in the
    :class:`PredictorState` that :meth:`init` makes.
    """

    replaces_update: ClassVar[bool] = False
    """Whether forecasts are made of gradients, so that the optimizer's update at the forecast point
    would count the same gradients twice; it is then taken back, weight decay excepted."""

    @property
    def period(self) -> int:
        """Full steps between two of its costly computations."""
        return 1

    @abstractmethod
    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An empty history for the parameters ``like``, named ``names``."""

    @abstractmethod
    def observe(
        self,
        state: PredictorState,
        observed: Sequence[Any],
        applied: WeightDelta | None,
        backend: AbstractBackend[Any],
        lengths: Any = None,
    ) -> None:
        """Add one full step to the history.

        Args:
            state: The history, changed in place.
            observed: One array per parameter: the displacement, base weights after minus before the
                step, which may be overwritten; if :attr:`replaces_update`, the gradients that the
                optimizer's own update was made of, which may not.
            applied: The part of it that was a forecast, None without one or if it is left out.
            backend: Kernels for these arrays.
            lengths: If :attr:`replaces_update`, the Euclidean norms of that update, one per
                parameter, shape (K,); None otherwise.
        """

    @abstractmethod
    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The displacement to expect over ``horizons[k]`` optimizer updates of parameter k.

        Pure: it neither changes the history nor copies it.

        Args:
            state: The history.
            horizons: One per parameter, in optimizer updates, at least 0.
            closed_loop: Whether the observed displacements contain this predictor's own forecasts.
        """


def momentum_factors(horizons: Sequence[float], closed_loop: bool) -> tuple[float, ...]:
    r"""Factors on the averaged displacement that make a forecast of ``horizons`` updates.

    In closed loop the displacement per step is 1 + h updates long, so the factor is
    :math:`\beta = h / (1 + h)`; in open loop it is h itself.
    """
    return tuple(h / (1.0 + h) if closed_loop else h for h in horizons)
