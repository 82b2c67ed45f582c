"""Checks of a predictor: form, purity, learning rates, and a history that can be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hybrid_predict.errors import ContractError
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.forecast.predictors.contract import check_delta
from hybrid_predict.testing.backends import TORCH, BackendUnderTest
from hybrid_predict.testing.contract import check_frozen, expect, saved_and_loaded
from hybrid_predict.torch.deltas import WeightDelta

NDFloat = NDArray[Any]
SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (4, 3),
    "vector": (5,),
    "kernel": (3, 2, 2, 2),
    "scalar": (),
}


@final
class History:
    """A predictor with its state, with NumPy arrays as input and output.

    Args:
        predictor: The predictor.
        case: The backend of its arrays.
        shapes: Shapes of the parameters by name.
    """

    def __init__(
        self,
        predictor: AbstractPredictor,
        case: BackendUnderTest = TORCH,
        shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    ) -> None:
        self.predictor, self.case = predictor, case
        self._like = [self.load(np.zeros(shape)) for shape in shapes.values()]
        self.state = predictor.init(tuple(shapes), self._like, case.backend)

    def load(self, array: NDFloat | float) -> Any:
        """Convert an array to the backend, in 64 bits."""
        return self.case.load(np.asarray(array), "float64")

    def observe(self, arrays: Sequence[NDFloat]) -> None:
        """Observe a displacement per unit of the learning rate."""
        self.predictor.observe(self.state, [self.load(x) for x in arrays], self.case.backend)

    def delta(self, rates: float | Sequence[Any] = 1.0) -> WeightDelta:
        """Return the forecast after checking its form; ``rates`` is one number or one each."""
        each = [rates] * len(self.state.names) if isinstance(rates, float) else list(rates)
        delta = self.predictor.forecast(self.state, each)
        check_delta(self.predictor, delta, self.state.names, self._like)
        return delta

    def forecast(self, rates: float | Sequence[Any] = 1.0) -> list[NDFloat]:
        """Return the forecast as NumPy arrays."""
        delta = self.delta(rates)
        pairs = zip(delta.directions, delta.factors, strict=True)
        return [float(factor) * self.case.dump(direction) for direction, factor in pairs]


def steps(
    seed: int = 0, count: int = 4, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> list[list[NDFloat]]:
    """Return random displacements, one list of arrays per full step."""
    generator = np.random.default_rng(seed)
    return [[np.asarray(generator.normal(size=s)) for s in shapes.values()] for _ in range(count)]


def same(left: Sequence[NDFloat], right: Sequence[NDFloat]) -> bool:
    """Whether two lists of arrays are equal, element by element."""
    return all(np.array_equal(x, y) for x, y in zip(left, right, strict=True))


def check_predictor(predictor: AbstractPredictor, case: BackendUnderTest = TORCH) -> None:
    """Check that a predictor keeps its contract.

    Args:
        predictor: The predictor, with any hyperparameters.
        case: The backend of its arrays.

    Raises:
        ContractError: If it breaks a promise of `AbstractPredictor`.
        PredictorError: If a forecast has a wrong form.
        ConfigError: If an argument is of another kind, such as a class in place of an object.

    Example:
        >>> from hybrid_predict import MomentumPredictor
        >>> check_predictor(MomentumPredictor())
    """
    expect("predictor", predictor, AbstractPredictor)
    expect("case", case, BackendUnderTest)
    for check in PREDICTOR_CHECKS.values():
        check(predictor, case)


def _observed(predictor: AbstractPredictor, case: BackendUnderTest) -> History:
    """Return a history of some displacements."""
    history = History(predictor, case)
    for arrays in steps():
        history.observe(arrays)
    return history


def immutable(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """The predictor is a frozen dataclass of hyperparameters; its history is in the state."""
    check_frozen(predictor)


def zero_at_first(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """The forecast is zero before the first displacement."""
    if any(np.any(x) for x in History(predictor, case).forecast(3.0)):
        raise ContractError(type(predictor).__name__, "a forecast of zero before any step")


def counted(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """The history counts its displacements."""
    history = _observed(predictor, case)
    if history.state.count != len(steps()):
        promise = "a history that counts its displacements"
        raise ContractError(type(predictor).__name__, promise, history.state.count)


def pure(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """A forecast changes nothing, can be repeated, and is finite."""
    name, history = type(predictor).__name__, _observed(predictor, case)
    count, first = history.state.count, history.forecast(0.5)
    history.forecast(7.0)
    if history.state.count != count or not same(first, history.forecast(0.5)):
        raise ContractError(name, "a forecast that changes nothing and can be repeated")
    if not all(np.all(np.isfinite(x)) for x in first):
        raise ContractError(name, "a finite forecast of finite displacements")


def still_at_rate_zero(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """A tensor with learning rate 0 is not moved, whatever the others' rates are."""
    history = _observed(predictor, case)
    rates: list[Any] = [float(k % 2) for k in range(len(SHAPES))]
    for given in (rates, [history.load(rate) for rate in rates]):
        for rate, moved in zip(rates, history.forecast(given), strict=True):
            if rate == 0 and np.any(moved):
                promise = "no forecast for a tensor whose learning rate is 0"
                raise ContractError(type(predictor).__name__, promise)


def round_trip(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """The history has arrays shaped like the parameters, and continues alike after being saved."""
    name = type(predictor).__name__
    original, restored = _observed(predictor, case), History(predictor, case)
    for key, values in original.state.arrays.items():
        shapes = [tuple(x.shape) for x in values]
        if shapes != list(SHAPES.values()):
            promise = f"one array shaped like each parameter in {key!r}"
            raise ContractError(name, promise, shapes)
    restored.state.arrays = saved_and_loaded(name, original.state.arrays, case)
    restored.state.count = original.state.count
    restored.state.numbers = saved_and_loaded(name, original.state.numbers, case)
    for displacement in steps(seed=1):
        if not same(original.forecast(), restored.forecast()):
            raise ContractError(name, "a history that survives being saved")
        original.observe(displacement)
        restored.observe(displacement)


PREDICTOR_CHECKS: dict[str, Callable[[AbstractPredictor, BackendUnderTest], None]] = {
    check.__name__: check
    for check in (immutable, zero_at_first, counted, pure, still_at_rate_zero, round_trip)
}
"""What :func:`check_predictor` checks, by name."""
