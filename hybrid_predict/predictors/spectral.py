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

_TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class SpectralPredictor(AbstractPredictor):
    r"""Forecast by the lengths of the optimizer's own updates, alike along all singular directions.

    .. math::
        \nu_t = \nu \, (1 + \cos(g, m)), \qquad m \leftarrow \gamma m + (1 - \gamma) g, \qquad
        (1 - \nu_t) m + \nu_t g = U \Sigma V^\top, \qquad O \approx U V^\top, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        P_{ij} = O_{ij} / \sqrt{r_i}, \qquad
        \hat\Delta = -h \, b \, s \, \|u\|_F \, \frac{P}{\|P\|_F}, \\
        s = \min \bigl(S, \max (1, \sqrt{\text{rows} / \text{columns}})\bigr), \qquad
        b = \min \bigl(B, \max (1, \eta / \hat\eta)\bigr)

    with g the gradient and u the optimizer's update of the last full step. An element-wise
    optimizer moves mostly along a few large singular directions; the small, persistent ones are
    where the trajectory is slow and can be foreseen. Since u is made of the same gradients, a
    forecast takes its place (:attr:`replaces_update`). Where successive gradients turn back, as
    in full-batch training at the edge of stability, the newest one is mostly oscillation, and
    :math:`\nu_t` is small.

    The factor b makes forecasts, before they are stretched, as long as the updates of a Muon of
    learning rate :math:`\eta`, whose singular values are :math:`\eta`, where the optimizer's are at
    their longest, if that takes no more than b = B. Its longest so far are those of a Muon of rate

    .. math:: \hat\eta = \max_t \Bigl( \sum_k \|u_{tk}\|_F^2 \Big/ \sum_k \min (m_k, n_k)
        \Bigr)^{1/2},

    over the parameters of one optimizer. It only grows, so that from its longest updates on lengths
    follow the optimizer's schedule. Convolutions are read as
    matrices of shape (output channels, rest); vectors are forecast along the averaged gradient
    itself. The memory :math:`\rho` of row moments is ``backends.base.ROW_MEMORY``.

    Args:
        decay: :math:`\gamma` in [0, 1), dimensionless.
        newest: :math:`\nu` in [0, 1], the share of the newest gradient in what is flattened; with
            ``damped`` where it is orthogonal to the average, and at most ½.
        damped: Whether that share follows the angle of gradient and average; it is constant
            otherwise.
        level_rows: Whether rows are levelled; P is O otherwise.
        stretch: S, how much further than others tall matrices are forecast at most, at least 1.
        muon_rate: :math:`\eta`, above 0, dimensionless.
        magnify: B, how much longer than updates forecasts are made at most to reach it, at least 1.
        refresh_every: Full steps between two computations of O, at least 1.
        iterations: Newton-Schulz steps per computation, at least 1.

    Raises:
        ConfigError: If an argument is out of range.

    References:
        Orthogonalised momentum, and its rate: Jordan et al., Muon (2024),
        https://kellerjordan.github.io/posts/muon
        Share of the newest gradient: Ma and Yarats, Quasi-hyperbolic momentum (2019),
        https://arxiv.org/abs/1810.06801
        Gradients that turn back: Cohen et al., Gradient descent on neural networks typically
        occurs at the edge of stability (2021), https://arxiv.org/abs/2103.00065
        Longer steps of tall matrices: Yang, Simon and Bernstein, A spectral condition for feature
        learning (2023), https://arxiv.org/abs/2310.17813
        Levelled rows: Li et al., NorMuon (2025), https://arxiv.org/abs/2510.05491
    """

    replaces_update: ClassVar[bool] = True

    decay: float = 0.95
    newest: float = 0.2
    damped: bool = True
    level_rows: bool = True
    stretch: float = 2.0
    muon_rate: float = 0.02
    magnify: float = 4.0
    refresh_every: int = 1
    iterations: int = 5

    def __post_init__(self) -> None:
        check_decay(self.decay)
        for name in ("damped", "level_rows"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "True or False", getattr(self, name))
        most = 0.5 if self.damped else 1.0
        if not 0.0 <= self.newest <= most:
            raise ConfigError("newest", f"a number in [0, {most:g}]", self.newest)
        for name in ("stretch", "magnify"):
            if not 1.0 <= getattr(self, name) < math.inf:
                raise ConfigError(name, "a finite number, at least 1", getattr(self, name))
        if not 0.0 < self.muon_rate < math.inf:
            raise ConfigError("muon_rate", "a finite number above 0", self.muon_rate)
        for name in ("refresh_every", "iterations"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(name, "an integer, at least 1", getattr(self, name))

    @property
    def period(self) -> int:
        """Full steps between two computations of O."""
        return self.refresh_every

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """Averages, directions and statistics of zero, and what follows from shapes."""
        check_history(self.decay, backend)
        average, direction = backend.zeros(like), backend.zeros(like)
        rows = backend.zero_rows(like)
        statistics = {"longest": rows.sum(), **({"rows": rows} if self.level_rows else {})}
        shapes = backend.matrices(like)
        return PredictorState(
            tuple(names),
            average,
            direction,
            statistics=statistics,
            stretch=tuple(min(self.stretch, max(1.0, math.sqrt(m / max(1, n)))) for m, n in shapes),
            unit=math.sqrt(sum(map(min, shapes))),
        )

    def observe(
        self,
        state: PredictorState,
        observed: Sequence[Any],
        applied: WeightDelta | None,
        backend: AbstractBackend[Any],
        lengths: Any = None,
    ) -> None:
        """Move the average towards the gradient, flatten it when due, as long as it should be."""
        known, total = state.statistics, (lengths * lengths).sum() ** 0.5
        known["longest"] = total.clip(min=known["longest"])
        ratio = self.muon_rate * state.unit / known["longest"].clip(min=_TINY)
        lengths = lengths * ratio.clip(1.0, self.magnify)
        due = state.count % self.refresh_every == 0
        keep = self._keep(state, observed, backend) if due else None
        state.average = backend.average(state.average, observed, self.decay)
        if keep is not None:
            state.direction, rows = backend.flatten_spectrum(
                state.direction,
                state.average,
                observed,
                keep,
                -lengths,
                self.iterations,
                known.get("rows"),
            )
            if rows is not None:
                known["rows"] = rows
        else:
            state.direction = backend.rescale(state.direction, lengths)
        state.count += 1

    def _keep(
        self, state: PredictorState, observed: Sequence[Any], backend: AbstractBackend[Any]
    ) -> Any:
        """The share of the average in what is flattened, one number per parameter."""
        if self.damped:
            return 1.0 - self.newest * (1.0 + backend.cosines(observed, state.average))
        return [1.0 - self.newest] * len(state.names)

    def forecast(
        self, state: PredictorState, horizons: Sequence[float], *, closed_loop: bool = True
    ) -> WeightDelta:
        """The direction, times horizon and stretch."""
        factors = tuple(h * s for h, s in zip(horizons, state.stretch, strict=True))
        return WeightDelta(state.names, tuple(state.direction), factors)
