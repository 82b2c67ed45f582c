"""Forecasts the tensors of a group: its predictor, the predictor's history, and the open window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from torch import Tensor

from hybrid_predict.forecast.movement import check_delta, slopes
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.forecast.window import Window
from hybrid_predict.ranks import shards
from hybrid_predict.ranks.sums import Counts
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta


@final
class Forecaster:
    """Learns how the tensors of a group move, and forecasts it.

    Args:
        predictor: The predictor.
        names: Names of the K parameters.
        parameters: The K parameters.
        history: Type in which averages are stored.
        window: Number of displacements in a window.
        short: Whether the first windows are short.
    """

    def __init__(
        self,
        predictor: AbstractPredictor,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        history: str,
        window: int,
        *,
        short: bool,
    ) -> None:
        values = [shards.local(p) for p in parameters]
        self._predictor = predictor
        self._names = tuple(names)
        self.history = predictor.init(names, values, history)
        self._window = Window(window, values, short=short)

    @property
    def moved(self) -> bool:
        """Whether there was any displacement."""
        return self.history.count > 0

    @property
    def held_bytes(self) -> int:
        """Most memory in bytes: that while a window is open."""
        arrays = [x for each in self.history.arrays.values() for x in each]
        return sum(x.nbytes for x in arrays) + self._window.held_bytes

    def learn(
        self,
        moved: Sequence[Tensor],
        rate: float,
        still: Sequence[Tensor | None],
        counts: Counts,
    ) -> tuple[int, Tensor] | None:
        """Learn from a displacement per unit of the learning rate.

        Args:
            moved: The displacements of the K tensors; they may be overwritten.
            rate: Largest learning rate of the tensors.
            still: Masks of the entries that are frozen now.
            counts: Factors with which every entry counts once over the ranks.

        Returns:
            Steps and numbers of a window that has closed, see :meth:`Window.close`; else None.
        """
        closed = self._window.close(counts) if self._window.add(moved, rate) else None
        self._predictor.observe(self.history, moved)
        # Otherwise forecasts would continue to move entries that are frozen now.
        for arrays in self.history.arrays.values():
            lists.clear(arrays, still)
        if self._window.due:
            forecast = self._predictor.forecast(self.history, [1.0] * len(self._names))
            self._window.open(forecast, self._drift(forecast))
        return closed

    def _drift(self, forecast: WeightDelta) -> Sequence[Tensor]:
        """What lengths are measured in, per unit of the learning rate."""
        if "drift" in self.history.arrays:
            return self.history.arrays["drift"]
        return list(forecast.tensors().values())

    def slopes(
        self,
        movement: WeightDelta,
        average: Sequence[Tensor],
        moved: Sequence[Tensor],
        rates: Sequence[float],
        counts: Counts,
    ) -> list[Tensor]:
        """Return the slopes of a predicted movement, if it concerns these tensors."""
        own = movement.of(self._names)
        return [slopes(own, average, moved, rates, counts)] if own.names else []

    def forecast(
        self, rates: Sequence[float], like: Sequence[Tensor]
    ) -> tuple[WeightDelta, list[Tensor]] | None:
        """Forecast the movement of one predicted step; None before the first displacement.

        Args:
            rates: Learning rate of each parameter.
            like: Tensors of the forms that it has to have.

        Returns:
            The forecast, and the length of the drift of each tensor at these rates, 0-dim.

        Raises:
            PredictorError: If the predictor returns a forecast of the wrong form.
        """
        if not self.moved:
            return None
        delta = self._predictor.forecast(self.history, rates)
        check_delta(self._predictor, delta, self._names, like)
        if "drift" not in self.history.arrays:
            return delta, list(lists.norms(list(delta.tensors().values())).unbind())
        norms = zip(lists.norms(self.history.arrays["drift"]).unbind(), rates, strict=True)
        return delta, [abs(rate) * norm for norm, rate in norms]

    def inherit(self, other: Forecaster, pairs: Sequence[tuple[int, int]]) -> None:
        """Go on counting where tensors of another group stand, by positions here and there."""
        if pairs:
            self.history.count = other.history.count
            self._window.inherit(other._window, pairs)

    @property
    def arrays(self) -> dict[str, list[Tensor]]:
        """Lists of local shards by name, as in a saved state."""
        return {f"history.{name}": values for name, values in self.history.arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what is saved besides arrays: counts, and the samples of this rank."""
        return {"count": self.history.count, "window": self._window.state_dict()}

    def load_state_dict(
        self, count: int, windows: Sequence[dict[str, Any]], parameters: Sequence[Tensor]
    ) -> None:
        """Load counts, and this rank's samples out of those of all ranks or of any one."""
        self.history.count = count
        self._window.load_state_dict(windows, [shards.local(p) for p in parameters])
