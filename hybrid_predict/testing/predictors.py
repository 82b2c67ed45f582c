"""The contract of a predictor: form, purity, and a history that can be saved."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid_predict.backends import TorchBackend
from hybrid_predict.checkpoint import detached
from hybrid_predict.errors import CheckpointError, ContractError
from hybrid_predict.parameters import WeightDelta
from hybrid_predict.predictors import AbstractPredictor
from hybrid_predict.predictors.contract import check_delta
from hybrid_predict.testing.backends import TORCH, BackendUnderTest

NDFloat = NDArray[Any]
SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (4, 3),
    "vector": (5,),
    "kernel": (3, 2, 2, 2),
    "scalar": (),
}
OTHER_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "names": {"another": (4, 3)},
    "transposed": {**SHAPES, "matrix": (3, 4)},
    "broadcastable": {**SHAPES, "vector": (1,)},
}


class History:
    """A predictor with its state, fed with NumPy arrays and read as NumPy arrays.

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
        """One array of the backend, in 64 bits."""
        return self.case.load(np.asarray(array), "float64")

    def observe(self, arrays: Sequence[NDFloat], applied: WeightDelta | None = None) -> None:
        """Show the predictor a displacement, or as gradients the way back if it asks for those."""
        backend, seen = self.case.backend, [self.load(x) for x in arrays]
        lengths = None
        if self.predictor.replaces_update:
            lengths, seen = backend.norms(seen), [self.load(-np.asarray(x)) for x in arrays]
        self.predictor.observe(self.state, seen, applied, backend, lengths)

    def delta(self, horizon: float, closed_loop: bool = True) -> WeightDelta:
        """Its forecast with one horizon for all, checked for its form."""
        horizons = [horizon] * len(self.state.names)
        delta = self.predictor.forecast(self.state, horizons, closed_loop=closed_loop)
        check_delta(self.predictor, delta, self.state.names, self._like)
        return delta

    def forecast(self, horizon: float, closed_loop: bool = True) -> list[NDFloat]:
        """The same as NumPy arrays."""
        delta = self.delta(horizon, closed_loop)
        pairs = zip(delta.directions, delta.factors, strict=True)
        return [factor * self.case.dump(direction) for direction, factor in pairs]


def steps(
    seed: int = 0, count: int = 4, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> list[list[NDFloat]]:
    """Random displacements, one list of arrays per full step."""
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

    Example:
        >>> from hybrid_predict import MomentumPredictor
        >>> check_predictor(MomentumPredictor())
    """
    for check in PREDICTOR_CHECKS.values():
        check(predictor, case)


def immutable(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """Hyperparameters are a value; history lives in the state."""
    parameters = getattr(type(predictor), "__dataclass_params__", None)
    if not dataclasses.is_dataclass(predictor) or parameters is None or not parameters.frozen:
        raise ContractError(type(predictor).__name__, "a frozen dataclass")


def zero_at_first(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """Before any observation the forecast is zero."""
    for closed in (True, False):
        if any(np.any(x) for x in History(predictor, case).forecast(3.0, closed)):
            raise ContractError(type(predictor).__name__, "a forecast of zero before any step")


def pure(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """A forecast changes nothing, can be repeated, and is finite."""
    name, history = type(predictor).__name__, History(predictor, case)
    for arrays in steps():
        history.observe(arrays)
    for closed in (True, False):
        count, first = history.state.count, history.forecast(2.0, closed)
        history.forecast(7.0, not closed)
        if history.state.count != count or not same(first, history.forecast(2.0, closed)):
            raise ContractError(name, "a forecast that changes nothing and can be repeated")
        if not all(np.all(np.isfinite(x)) for x in first):
            raise ContractError(name, "a finite forecast of finite displacements")


def horizon_per_tensor(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """A tensor with horizon 0 stays, whatever the others do."""
    history = History(predictor, case)
    history.observe(steps(count=1)[0])
    horizons = [float(k % 2) for k in range(len(SHAPES))]
    delta = history.predictor.forecast(history.state, horizons)
    for horizon, direction, factor in zip(horizons, delta.directions, delta.factors, strict=True):
        if horizon == 0 and np.any(factor * case.dump(direction)):
            raise ContractError(
                type(predictor).__name__, "no forecast for a tensor with horizon 0", factor
            )


def round_trip(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """A history that was saved without code goes on as the original does."""
    name = type(predictor).__name__
    original, restored = History(predictor, case), History(predictor, case)
    for arrays in steps():
        original.observe(arrays)
    state = detached(original.state.state_dict())
    if isinstance(case.backend, TorchBackend):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        try:
            state = torch.load(buffer, weights_only=True)
        except Exception as error:
            promise = "a history of tensors and primitives, for torch.load(weights_only=True)"
            raise ContractError(name, promise, repr(error)) from error
    restored.state.load_state_dict(state, case.backend)
    for displacement in (None, *steps(seed=1)):
        if displacement is not None:
            original.observe(displacement)
            restored.observe(displacement)
        if not same(original.forecast(2.0), restored.forecast(2.0)):
            raise ContractError(name, "a history that survives being saved")


def foreign_history(predictor: AbstractPredictor, case: BackendUnderTest) -> None:
    """The history of other parameters is refused and changes nothing."""
    name = type(predictor).__name__
    for kind, shapes in OTHER_SHAPES.items():
        history, other = History(predictor, case), History(predictor, case, shapes)
        for own, foreign in zip(steps(), steps(shapes=shapes), strict=True):
            history.observe(own)
            other.observe(foreign)
        before = history.forecast(2.0)
        try:
            history.state.load_state_dict(other.state.state_dict(), case.backend)
        except CheckpointError:
            if same(before, history.forecast(2.0)):
                continue
        raise ContractError(name, f"a refusal of the history of other parameters ({kind})")


PREDICTOR_CHECKS: dict[str, Callable[[AbstractPredictor, BackendUnderTest], None]] = {
    check.__name__: check
    for check in (immutable, zero_at_first, pure, horizon_per_tensor, round_trip, foreign_history)
}
"""What :func:`check_predictor` checks, by name."""
