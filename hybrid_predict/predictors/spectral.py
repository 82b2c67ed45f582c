"""Forecast along the averaged gradient with its spectrum flattened and its rows levelled."""

from __future__ import annotations

import math
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
    r"""Forecast by the lengths of the optimizer's own updates, alike along all singular directions.

    .. math::
        m \leftarrow \gamma m + (1 - \gamma) g, \qquad
        (1 - \nu) m + \nu g = U \Sigma V^\top, \qquad O \approx U V^\top, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        P_{ij} = O_{ij} / \sqrt{r_i}, \qquad
        \hat\Delta = -h \, s \, \|u\|_F \, \frac{P}{\|P\|_F}, \\
        s = \min \bigl(S, \max (1, \sqrt{\text{rows} / \text{columns}})\bigr)

    with g the gradient and u the optimizer's update of the last full step. An element-wise
    optimizer moves mostly along a few large singular directions; the small, persistent ones are
    where the trajectory is slow and can be foreseen. Since u is made of the same gradients, a
    forecast takes its place (:attr:`replaces_update`). Convolutions are read as matrices of shape
    (output channels, rest); vectors are forecast along the averaged gradient itself. The memory
    :math:`\rho` of row moments is ``backends.base.ROW_MEMORY``.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        newest: :math:`\nu` in [0, 1], the share of the newest gradient in what is flattened.
        level_rows: Whether rows are levelled; P is O otherwise.
        stretch: S, how much further than others tall matrices are forecast at most, at least 1.
        refresh_every: Full steps between two computations of O, at least 1.
        iterations: Newton-Schulz steps per computation, at least 1.

    Raises:
        ConfigError: If an argument is out of range.

    References:
        Orthogonalised momentum: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon
        Share of the newest gradient: Ma and Yarats, Quasi-hyperbolic momentum (2019),
        https://arxiv.org/abs/1810.06801
        Longer steps of tall matrices: Yang, Simon and Bernstein, A spectral condition for feature
        learning (2023), https://arxiv.org/abs/2310.17813
        Levelled rows: Li et al., NorMuon (2025), https://arxiv.org/abs/2510.05491
    """

    replaces_update: ClassVar[bool] = True

    decay: float = 0.95
    newest: float = 0.15
    level_rows: bool = True
    stretch: float = 2.0
    refresh_every: int = 1
    iterations: int = 5

    def __post_init__(self) -> None:
        check_decay(self.decay)
        if not 0.0 <= self.newest <= 1.0:
            raise ConfigError("newest", "a number in [0, 1]", self.newest)
        if not isinstance(self.level_rows, bool):
            raise ConfigError("level_rows", "True or False", self.level_rows)
        if not 1.0 <= self.stretch < math.inf:
            raise ConfigError("stretch", "a finite number, at least 1", self.stretch)
        for name in ("refresh_every", "iterations"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(name, "an integer, at least 1", getattr(self, name))

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """Averages, directions and moments of zero, and the stretch of each matrix."""
        check_history(self.decay, backend)
        rows = backend.zero_rows(like) if self.level_rows else None
        ratios = [math.sqrt(m / max(1, n)) for m, n in backend.matrices(like)]
        stretch = tuple(min(self.stretch, max(1.0, ratio)) for ratio in ratios)
        average, direction = backend.zeros(like), backend.zeros(like)
        return PredictorState(tuple(names), average, direction, rows=rows, stretch=stretch)

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
            state.direction, state.rows = backend.flatten_spectrum(
                state.direction,
                state.average,
                observed,
                1.0 - self.newest,
                -lengths,
                self.iterations,
                state.rows,
            )
        else:
            state.direction = backend.rescale(state.direction, lengths)
        state.count += 1

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The direction, times horizon and stretch."""
        factors = tuple(h * s for h, s in zip(horizons, state.stretch, strict=True))
        return WeightDelta(state.names, tuple(state.direction), factors)
