"""Learned forecasts that decision 8 measured, made of averages; none of them is shipped.

Those that need a window of displacements are in candidates_window.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from hybrid_predict import LinearPredictor, MomentumPredictor, WeightDelta
from hybrid_predict.backends import AbstractBackend
from hybrid_predict.predictors import AbstractPredictor, PredictorState


@dataclass
class LabState(PredictorState):
    """A history with a window of earlier arrays and small tables beside the average.

    Args:
        names: Names of the K parameters.
        average: One array per parameter.
        direction: Where forecasts point.
        count: Full steps observed so far.
        window: Lists of K arrays each, the newest last.
        tables: Small tensors by name, on the host.
    """

    window: list[list[Any]] = field(default_factory=list)
    tables: dict[str, Tensor] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """The whole history as plain containers of arrays."""
        own = {"window": [list(x) for x in self.window], "tables": dict(self.tables)}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any], backend: AbstractBackend[Any]) -> None:
        """Continue from a saved history.

        Raises:
            CheckpointError: If it belongs to other parameters.
        """
        super().load_state_dict(state, backend)
        self.window = [backend.copy(backend.zeros(x), x) for x in state["window"]]
        self.tables = {name: table.clone() for name, table in state["tables"].items()}


def lab_state(
    names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any], arrays: int = 0
) -> LabState:
    """A history of zeros with ``arrays`` lists of arrays in its window."""
    window = [backend.zeros(like) for _ in range(arrays)]
    return LabState(tuple(names), backend.zeros(like), backend.zeros(like), window=window)


class LabPredictor(AbstractPredictor):
    """A candidate whose history starts at zero."""

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> LabState:
        """A history of zeros."""
        return lab_state(names, like, backend)


def gathered(
    state: LabState,
    moved: Sequence[Tensor],
    backend: AbstractBackend[Any],
    every: int,
    share: float = 1.0,
) -> bool:
    """Add a share of a displacement to the average; whether ``every`` full steps are together."""
    state.average = backend.add_scaled(state.average, moved, [share] * len(moved))
    state.count += 1
    return state.count % every == 0


def own_update(displacement: Sequence[Tensor], applied: WeightDelta | None) -> list[Tensor]:
    """The optimizer's update: a displacement less the forecast in it, as new tensors."""
    update = [x.clone() for x in displacement]
    if applied is not None:
        for x, direction, factor in zip(update, applied.directions, applied.factors, strict=True):
            x.sub_(direction, alpha=factor)
    return update


def products(left: Sequence[Sequence[Tensor]], right: Sequence[Sequence[Tensor]]) -> Tensor:
    """Inner products of every left with every right array: (K, left, right), 64 bits, host."""
    blocks = []
    for k in range(len(left[0])):
        rows = torch.stack([x[k].reshape(-1) for x in left])
        columns = torch.stack([x[k].reshape(-1) for x in right])
        blocks.append(rows @ columns.T)
    return torch.stack(blocks).double().cpu()


def combination(coefficients: Tensor, arrays: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Sums of arrays, the coefficients of shape (K, arrays)."""
    sums = []
    for k, row in enumerate(coefficients.tolist()):
        total = torch.zeros_like(arrays[0][k])
        for weight, x in zip(row, arrays, strict=True):
            total.add_(x[k], alpha=weight)
        sums.append(total)
    return sums


def ridge_coefficients(gram: Tensor, moment: Tensor, alpha: float) -> Tensor:
    r"""Ridge per tensor from sums over its entries, features scaled to unit length.

    .. math:: \min_c \|X c - y\|^2 + \alpha \textstyle\sum_j \|x_j\|^2 c_j^2

    Args:
        gram: :math:`X^\top X`, shape (K, p, p).
        moment: :math:`X^\top y`, shape (K, p).
        alpha: Dimensionless.

    Returns:
        c, shape (K, p).
    """
    found = np.zeros(tuple(moment.shape))
    pairs = zip(gram.numpy(), moment.numpy(), strict=True)
    for row, (square, product) in zip(found, pairs, strict=True):
        lengths = np.sqrt(np.diag(square))
        used = np.flatnonzero(lengths > 0)
        if not used.size:
            continue
        scale = lengths[used]
        # Any factor of the Gram matrix has the same ridge solution as the features themselves.
        values, vectors = np.linalg.eigh(square[np.ix_(used, used)] / np.outer(scale, scale))
        roots = np.sqrt(np.clip(values, 1e-12, None))
        target = (vectors.T @ (product[used] / scale)) / roots
        model = Ridge(alpha=alpha, fit_intercept=False).fit(roots[:, None] * vectors.T, target)
        row[used] = model.coef_ / scale
    return torch.from_numpy(found)


@dataclass(frozen=True, kw_only=True)
class OuterNesterov(LabPredictor):
    r"""Forecast the momentum part of an outer Nesterov step, in equal shares over its full steps.

    .. math:: D = \sum_{i<K} u_{t-i}, \qquad m \leftarrow \mu m + (1 - \mu) D, \qquad
        \hat\Delta = h \, m / K

    with u the optimizer's updates; m changes every K full steps. At outer rate 1 and
    :math:`h = \mu / (1 - \mu)` all shares together are the outer step less its inner steps.

    Args:
        every: K, at least 1.
        momentum: :math:`\mu` in [0, 1).

    References:
        Douillard et al., DiLoCo (2023); Kallusky et al., SNOO (2025).
    """

    every: int = 8
    momentum: float = 0.8

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Add the update to the inner displacement, and that to the momentum when due."""
        update = own_update(observed, applied)
        if gathered(state, update, backend, self.every, 1.0 / self.every):
            state.direction = backend.average(state.direction, state.average, self.momentum)
            state.average = backend.zeros(state.average)

    def forecast(self, state, horizons, *, closed_loop=True):  # type: ignore[no-untyped-def]
        """The outer momentum per update, times the horizon."""
        return WeightDelta(state.names, tuple(state.direction), tuple(horizons))


@dataclass(frozen=True, kw_only=True)
class RidgePredictor(AbstractPredictor):
    r"""Forecast by a regression over averages of the updates, fitted on the run so far.

    .. math:: \hat\Delta = h \sum_j c_j x_j, \qquad
        c = \arg\min \sum_{s} \rho^{t-s}
        \Bigl\| \tfrac1R \sum_{i=1}^{R} u_{s+i} - \sum_j c_j x_j(s) \Bigr\|^2
        + \alpha \sum_j c_j^2 \|x_j\|^2

    with features x: the last update u, its averages at several decays, and one of these with its
    spectrum flattened. One set of coefficients per tensor, fitted every R full steps by
    scikit-learn on p x p sums.

    Args:
        decays: Of the averages; the one in the middle is flattened.
        every: R, at least 1.
        memory: :math:`\rho` per fit.
        alpha: Relative to the features' lengths.

    References:
        Hoerl and Kennard, Ridge regression (1970).
    """

    decays: tuple[float, ...] = (0.8, 0.95, 0.99)
    every: int = 8
    memory: float = 0.9
    alpha: float = 0.1

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> LabState:
        """Features of zero, now and at the last fit."""
        features = len(self.decays) + 2
        state = lab_state(names, like, backend, 2 * features)
        shape = (len(names), features)
        state.tables = {
            "gram": torch.zeros((*shape, features), dtype=torch.float64),
            "moment": torch.zeros(shape, dtype=torch.float64),
            "coefficients": torch.zeros(shape, dtype=torch.float64),
        }
        return state

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Renew the features, fit when due, and combine them."""
        update, features = own_update(observed, applied), len(self.decays) + 2
        due = gathered(state, update, backend, self.every, 1.0 / self.every)
        now = state.window[:features]
        backend.copy(now[0], update)
        for decay, mean in zip(self.decays, now[1:-1], strict=True):
            backend.average(mean, update, decay)
        mean = now[1 + len(self.decays) // 2]
        backend.flatten_spectrum(now[-1], mean, mean, [0.0] * len(mean), backend.norms(mean), 5)
        if due:
            self._fit(state, backend, features)
        state.direction = combination(state.tables["coefficients"], now)

    def _fit(self, state: LabState, backend: AbstractBackend[Any], features: int) -> None:
        """Add one pair of features then and mean update since to the sums."""
        then, tables = state.window[features:], state.tables
        if state.count > self.every:
            length = products([state.average], [state.average]).clamp_min(1e-30)
            gram = products(then, then) / length
            moment = (products(then, [state.average]) / length)[..., 0]
            tables["gram"] = self.memory * tables["gram"] + gram
            tables["moment"] = self.memory * tables["moment"] + moment
            tables["coefficients"] = ridge_coefficients(
                tables["gram"], tables["moment"], self.alpha
            )
        for old, new in zip(then, state.window[:features], strict=True):
            backend.copy(old, new)
        state.average = backend.zeros(state.average)

    def forecast(self, state, horizons, *, closed_loop=True):  # type: ignore[no-untyped-def]
        """The fitted mean update, times the horizon."""
        return WeightDelta(state.names, tuple(state.direction), tuple(horizons))


@dataclass
class EnsembleState(PredictorState):
    """The histories of several predictors over the same parameters.

    Args:
        names: Names of the K parameters.
        average: Nothing of its own.
        direction: The same.
        count: Full steps observed so far.
        members: One history per member.
    """

    members: list[PredictorState] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """All members' histories."""
        members = [member.state_dict() for member in self.members]
        return {"names": list(self.names), "count": self.count, "members": members}

    def load_state_dict(self, state: dict[str, Any], backend: AbstractBackend[Any]) -> None:
        """Continue from saved histories.

        Raises:
            CheckpointError: If they belong to other parameters; the first member finds out.
        """
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load_state_dict(saved, backend)
        self.count = int(state["count"])


@dataclass(frozen=True, kw_only=True)
class EnsemblePredictor(AbstractPredictor):
    r"""Forecast the mean of several forecasts, shortened by their disagreement.

    .. math:: \hat\Delta = \kappa \, \bar f, \qquad
        \kappa = \|\bar f\| \Big/ \sqrt{\textstyle\frac1n \sum_i \|f_i\|^2} \in [0, 1]

    Args:
        members: The predictors; none may replace the update.

    References:
        Lakshminarayanan et al., Simple and scalable predictive uncertainty (2017).
    """

    members: tuple[AbstractPredictor, ...] = (
        MomentumPredictor(),
        LinearPredictor(),
        RidgePredictor(),
    )

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> EnsembleState:
        """Empty histories."""
        states = [member.init(names, like, backend) for member in self.members]
        return EnsembleState(tuple(names), [], [], members=states)

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Show every member the displacement."""
        for member, own in zip(self.members, state.members, strict=True):
            member.observe(own, [x.clone() for x in observed], applied, backend)
        state.count += 1

    def forecast(self, state, horizons, *, closed_loop=True):  # type: ignore[no-untyped-def]
        """The mean of the members' forecasts, times their agreement."""
        pairs = zip(self.members, state.members, strict=True)
        deltas = [m.forecast(s, horizons, closed_loop=closed_loop) for m, s in pairs]
        directions, factors = [], []
        for k in range(len(state.names)):
            parts = torch.stack([d.factors[k] * d.directions[k] for d in deltas])
            mean = parts.mean(0)
            square = float(parts.square().sum()) / len(deltas)
            directions.append(mean)
            factors.append(float(mean.norm()) / square**0.5 if square > 0 else 0.0)
        return WeightDelta(state.names, tuple(directions), tuple(factors))
