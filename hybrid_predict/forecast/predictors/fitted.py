"""A predictor along the drift, with a length that is fitted to the following displacements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors.base import AbstractPredictor, PredictorState
from hybrid_predict.forecast.window import Reading
from hybrid_predict.model.deltas import WeightDelta
from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.tensors.base import check_history

START = 0.5
"""Coefficient of the first drift before any window was fitted."""


@final
@dataclass(frozen=True, kw_only=True)
class FittedPredictor(AbstractPredictor):
    r"""Forecast a combination of drifts, fitted by least squares to the next full steps.

    .. math:: \hat\Delta = \eta \sum_j \lambda_j \, d_j, \qquad
        \lambda = \arg \min_\lambda \sum_w \frac{\phi^{W - w}}{\|d_{w1}\|^2} \,
        \Bigl\| \tfrac1{K_w} D_w - \sum_j \lambda_j d_{wj} \Bigr\|^2 + \rho \,
        \| \lambda - \bar\lambda \|_G^2

    with :math:`d_j` the drifts of several decays, and the last displacement if ``last`` is set;
    :math:`D_w` the sum of the :math:`K_w` displacements in window w, on a fixed sample of entries.
    Every window is divided by the squared length of its first drift over all tensors. So windows
    weigh alike, although drifts get many times shorter during a run. Each tensor has its own
    coefficients; the ridge draws them towards :math:`\bar\lambda`, the coefficients fitted to all
    tensors together. They are scaled down if the forecast would be longer than the first drift.

    Args:
        decays: Decays of the drifts, in [0, 1); each needs one buffer.
        last: Whether the last displacement is another direction; it needs one buffer.
        ridge: :math:`\rho`, at least 0. 0 fits each tensor separately; a large value fits all
            tensors alike.
        memory: :math:`\phi` in [0, 1], the factor on a window's weight with each later window.
        gated: Whether predicted steps need skill.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        Least squares with forgetting: Ljung, System Identification (1999), chapter 11.
    """

    decays: tuple[float, ...] = (0.95,)
    last: bool = False
    ridge: float = 0.3
    memory: float = 0.8
    gated: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "decays", tuple(self.decays))
        if not self.decays or not all(0.0 <= d < 1.0 for d in self.decays):
            raise ConfigError("decays", "numbers in [0, 1), at least one", self.decays)
        if not 0.0 <= self.ridge < math.inf:
            raise ConfigError("ridge", "a finite number, at least 0", self.ridge)
        if not 0.0 <= self.memory <= 1.0:
            raise ConfigError("memory", "in [0, 1]", self.memory)
        for name in ("last", "gated"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "True or False", getattr(self, name))

    @property
    def decay(self) -> float:
        """Decay of the drift."""
        return self.decays[0]

    @property
    def _directions(self) -> list[str]:
        return [f"drift.{d:g}" for d in self.decays] + ["last"] * self.last

    def init(
        self, names: Sequence[str], like: Sequence[Any], backend: AbstractBackend[Any]
    ) -> PredictorState:
        """Return a history with zero drifts."""
        check_history(max(self.decays), backend)
        arrays = {name: backend.zeros(like) for name in self._directions}
        return PredictorState(tuple(names), arrays)

    def observe(
        self,
        state: PredictorState,
        displacement: Sequence[Any],
        backend: AbstractBackend[Any],
    ) -> None:
        """Move every drift towards the displacement."""
        state.count += 1
        arrays = state.arrays
        for name, decay in zip(self._directions, self.decays, strict=False):
            own = min(decay, 1.0 - 1.0 / state.count)
            arrays[name] = backend.average(arrays[name], displacement, own)
        if self.last:
            arrays["last"] = backend.copy(arrays["last"], displacement)

    def directions(self, state: PredictorState) -> list[list[Any]]:
        """Return the drifts, and the last displacement if ``last`` is set."""
        return [state.arrays[name] for name in self._directions]

    def fit(self, state: PredictorState, reading: Reading) -> None:
        """Fit the coefficients with one more window; skip one without drift or not finite."""
        first = float(reading.directions[:, 0, 0].sum())
        if not (reading.finite and first > 0.0):
            return
        count = len(self._directions)
        pairs = zip(reading.names, reading.directions, reading.targets, strict=True)
        for name, gram, target in pairs:
            _, old = _split(state.numbers.get(name), count)
            new = self.memory * old + np.concatenate([gram, target[:, None]], 1) / first
            state.numbers[name] = [*([0.0] * count), *new.flatten().tolist()]
        sums = {name: _split(state.numbers[name], count)[1] for name in reading.names}
        pooled = _solve(sum(sums.values()), np.zeros(count), 1e-6)
        for name, own in sums.items():
            found = _shortened(_solve(own, pooled, self.ridge), own)
            state.numbers[name][:count] = found.tolist()

    def square(self, state: PredictorState, reading: Reading) -> float:
        """Return the squared length that the new coefficients give the window's directions."""
        count = len(self._directions)
        own = [_split(state.numbers.get(name), count)[0] for name in reading.names]
        return float(sum(c @ gram @ c for c, gram in zip(own, reading.directions, strict=True)))

    def forecast(self, state: PredictorState, rates: Sequence[Any]) -> WeightDelta:
        """Combine the directions with the fitted coefficients, times the learning rate."""
        count, basis = len(self._directions), self.directions(state)
        own = [_split(state.numbers.get(name), count)[0] for name in state.names]
        if count == 1:
            factors = tuple(rate * float(c[0]) for c, rate in zip(own, rates, strict=True))
            return WeightDelta(state.names, tuple(basis[0]), factors)
        columns = zip(own, *basis, strict=True)
        mixed = tuple(
            sum(float(c) * _in_32_bits(d) for c, d in zip(cs, each, strict=True))
            for cs, *each in columns
        )
        return WeightDelta(state.names, mixed, tuple(1.0 * rate for rate in rates))


def _split(numbers: Sequence[float] | None, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split saved numbers into J coefficients, and J rows of Gram matrix and target."""
    if numbers is None:
        return np.array([START] + [0.0] * (count - 1)), np.zeros((count, count + 1))
    return np.array(numbers[:count]), np.array(numbers[count:]).reshape(count, count + 1)


def _solve(sums: Any, centre: NDArray[Any], ridge: float) -> NDArray[Any]:
    """Solve least squares with a ridge towards ``centre``, in units of the directions' lengths."""
    gram, target = sums[:, :-1], sums[:, -1]
    weights = ridge * np.diag(np.diag(gram))
    wanted: NDArray[Any] = target + weights @ centre
    solved: NDArray[Any] = np.linalg.lstsq(gram + weights, wanted, rcond=1e-8)[0]
    return solved


def _shortened(coefficients: NDArray[Any], sums: NDArray[Any]) -> NDArray[Any]:
    """Scale the coefficients so that the forecast is at most as long as the first direction."""
    gram = sums[:, :-1]
    square, limit = float(coefficients @ gram @ coefficients), float(gram[0, 0])
    return coefficients * math.sqrt(limit / square) if square > limit else coefficients


def _in_32_bits(array: Any) -> Any:
    """Convert bfloat16 arrays to 32 bits; others are returned as is."""
    return array.float() if str(getattr(array, "dtype", "")) == "torch.bfloat16" else array
