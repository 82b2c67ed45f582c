"""Forecast along the averaged gradient with its spectrum flattened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hybrid_predict.backends import AbstractBackend
from hybrid_predict.errors import ConfigError
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.predictors.base import AbstractPredictor, PredictorState
from hybrid_predict.predictors.momentum import check_decay, check_history


@dataclass(frozen=True, kw_only=True)
class SpectralPredictor(AbstractPredictor):
    r"""Forecast as long as h of the optimizer's own updates, equally along all singular directions.

    .. math::
        m \leftarrow \gamma m + (1 - \gamma) g, \qquad
        \gamma m + (1 - \gamma) g = U \Sigma V^\top, \qquad
        \hat\Delta = -h \, \|u\|_F \, \frac{O}{\|O\|_F}, \quad O \approx U V^\top

    with g the gradient and u the optimizer's update of the last full step. An element-wise
    optimizer moves mostly along a few large singular directions; the small, persistent ones are
    where the trajectory is slow and can be foreseen. Since u is made of the same gradients, a
    forecast takes its place (:attr:`replaces_update`). Convolutions are read as matrices of shape
    (output channels, rest); vectors are forecast along the averaged gradient itself.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        refresh_every: Full steps between two computations of O, at least 1.
        iterations: Newton-Schulz steps per computation, at least 1.

    Raises:
        ConfigError: If an argument is out of range.

    References:
        Orthogonalised momentum: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon
    """

    replaces_update: ClassVar[bool] = True

    decay: float = 0.95
    refresh_every: int = 1
    iterations: int = 5

    def __post_init__(self) -> None:
        check_decay(self.decay)
        for name in ("refresh_every", "iterations"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(name, "an integer, at least 1", getattr(self, name))

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """An average and a direction of zero."""
        check_history(self.decay, backend)
        return PredictorState(tuple(names), backend.zeros(like), backend.zeros(like))

    def observe(
        self,
        state: PredictorState,
        observed: Sequence[Any],
        applied: WeightDelta | None,
        backend: AbstractBackend[Any],
        lengths: Any = None,
    ) -> None:
        """Move the average towards the gradient, flatten it when due, as long as the update."""
        state.average = backend.average(state.average, observed, self.decay)
        if state.count % self.refresh_every == 0:
            state.direction = backend.flatten_spectrum(
                state.direction, state.average, observed, self.decay, -lengths, self.iterations
            )
        else:
            state.direction = backend.rescale(state.direction, lengths)
        state.count += 1

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The direction, times the horizon."""
        return WeightDelta(state.names, tuple(state.direction), tuple(horizons))
