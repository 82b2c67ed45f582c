"""Checks of a corrected update: form, directions, lengths, and a state that can be saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from hybrid_predict.errors import ContractError
from hybrid_predict.testing.backends import TORCH, BackendUnderTest
from hybrid_predict.testing.contract import check_frozen, expect, saved_and_loaded
from hybrid_predict.testing.predictors import NDFloat, same, steps
from hybrid_predict.updates import AbstractUpdate

SHAPES: dict[str, tuple[int, ...]] = {
    "square": (4, 4),
    "tall": (6, 3),
    "wide": (3, 5),
    "convolution": (4, 2, 3, 3),
}
"""Shapes of hidden matrices, the kind of parameters that updates are made for."""

_ROUNDING = {"float32": 1e-4, "bfloat16": 1e-2}
"""Tolerance of a unit length, by the type in which averages are stored."""


@final
class Correction:
    """An update with its state and averaged gradients, with NumPy arrays as input and output."""

    def __init__(self, update: AbstractUpdate, case: BackendUnderTest = TORCH) -> None:
        self.update, self.case = update, case
        like = [self.load(np.zeros(shape)) for shape in SHAPES.values()]
        self.state = update.init(like, case.backend)
        self.average = case.backend.zeros(like)

    def load(self, array: NDFloat) -> Any:
        """Convert an array to the backend, in 32 bits."""
        return self.case.load(np.asarray(array), "float32")

    def step(self, gradients: Sequence[NDFloat], members: Sequence[int] | None = None) -> Any:
        """Return the directions after one more gradient.

        Args:
            gradients: One gradient per tensor.
            members: Positions of the tensors that have a gradient; None for all.

        Returns:
            The directions of these tensors as arrays of the backend.

        Raises:
            ContractError: If their number is wrong, or gradients or averages were changed.
        """
        backend = self.case.backend
        chosen = range(len(SHAPES)) if members is None else members
        new = [self.load(gradients[k]) for k in chosen]
        before = [self.average[k] for k in chosen]
        _, cosines = backend.angles(new, before)
        average = backend.average(before, new, self.update.decay)
        for k, value in zip(chosen, average, strict=True):
            self.average[k] = value
        kept = [[self.case.dump(x).copy() for x in xs] for xs in (average, new)]
        directions = self.update.direction(self.state, list(chosen), average, new, cosines, backend)
        name = type(self.update).__name__
        if len(directions) != len(new):
            raise ContractError(name, f"{len(new)} directions", len(directions))
        if not all(map(same, kept, [[self.case.dump(x) for x in xs] for xs in (average, new)])):
            raise ContractError(name, "a direction() that does not change gradients and averages")
        return directions

    def directions(self, gradients: Sequence[NDFloat]) -> list[NDFloat]:
        """Return the directions of all tensors as NumPy arrays."""
        return [self.case.dump(x) for x in self.step(gradients)]

    def lengths(self, plain: Sequence[float], members: Sequence[int] | None = None) -> NDFloat:
        """Return the lengths if the optimizer's updates have the lengths ``plain``."""
        chosen = list(range(len(SHAPES)) if members is None else members)
        lengths = self.update.lengths(self.state, chosen, self.load(np.asarray(plain)))
        return np.asarray(self.case.dump(lengths))


def check_update(update: AbstractUpdate, case: BackendUnderTest = TORCH) -> None:
    """Check that a corrected update keeps its contract.

    Args:
        update: The update, with any hyperparameters.
        case: The backend of its arrays.

    Raises:
        ContractError: If it breaks a promise of `AbstractUpdate`.
        ConfigError: If an argument is of another kind, such as a class in place of an object.

    Example:
        >>> from hybrid_predict import SpectralUpdate
        >>> check_update(SpectralUpdate())
    """
    expect("update", update, AbstractUpdate)
    expect("case", case, BackendUnderTest)
    for check in UPDATE_CHECKS.values():
        check(update, case)


def plain_value(update: AbstractUpdate, case: BackendUnderTest) -> None:
    """The update is a frozen dataclass: share and decay in [0, 1], bound at least 1 or None."""
    name = type(update).__name__
    check_frozen(update)
    if not (0.0 <= update.share <= 1.0 and 0.0 <= update.decay < 1.0):
        raise ContractError(name, "share in [0, 1] and decay in [0, 1)", update)
    if update.bound is not None and not update.bound >= 1.0:
        raise ContractError(name, "a bound of at least 1, or None", update.bound)


def downhill(update: AbstractUpdate, case: BackendUnderTest) -> None:
    """Directions have unit length and the tensors' shapes, and the first goes downhill."""
    name, correction = type(update).__name__, Correction(update, case)
    for number, gradients in enumerate(steps(shapes=SHAPES)):
        directions = correction.directions(gradients)
        for key, direction, gradient in zip(SHAPES, directions, gradients, strict=True):
            if direction.shape != gradient.shape:
                raise ContractError(name, f"a direction shaped like {key}", direction.shape)
            length = float(np.linalg.norm(direction))
            if not abs(length - 1.0) < _ROUNDING[case.backend.history]:
                raise ContractError(name, f"a direction of unit length for {key}", length)
            if number == 0 and not np.vdot(direction, gradient) < 0:
                raise ContractError(name, f"a direction down the gradient of {key}")


def finite_at_zero(update: AbstractUpdate, case: BackendUnderTest) -> None:
    """Directions are finite if all gradients are zero."""
    zeros = [np.zeros(shape) for shape in SHAPES.values()]
    if not all(np.all(np.isfinite(x)) for x in Correction(update, case).directions(zeros)):
        raise ContractError(type(update).__name__, "finite directions where gradients are zero")


def still_where_the_optimizer_is(update: AbstractUpdate, case: BackendUnderTest) -> None:
    """Lengths are finite and at least 0, and 0 where the optimizer's own length is 0."""
    name, correction = type(update).__name__, Correction(update, case)
    for plain in ([0.0] * len(SHAPES), [1.0] * len(SHAPES), [0.0, 1e-6, 2.0, 0.0]):
        correction.step(steps(count=1, shapes=SHAPES)[0])
        lengths = correction.lengths(plain)
        if lengths.shape != (len(SHAPES),):
            raise ContractError(name, f"lengths of shape ({len(SHAPES)},)", lengths.shape)
        if not (np.all(np.isfinite(lengths)) and np.all(lengths >= 0)):
            raise ContractError(name, "finite lengths of at least 0", lengths.tolist())
        if np.any(lengths[np.asarray(plain) == 0]):
            raise ContractError(name, "a length of 0 if the optimizer's update has length 0")


def absent_members_keep_their_state(update: AbstractUpdate, case: BackendUnderTest) -> None:
    """The state of a tensor without a gradient does not change."""
    name, correction = type(update).__name__, Correction(update, case)
    gradients = steps(shapes=SHAPES)
    correction.step(gradients[0])
    correction.lengths([1.0] * len(SHAPES))
    arrays = correction.state.arrays
    before = [case.dump(values[1]).copy() for values in arrays.values()]
    correction.step(gradients[1], members=[0, 2, 3])
    lengths = correction.lengths([1.0] * 3, members=[0, 2, 3])
    if lengths.shape != (3,):
        raise ContractError(name, "one length for each member", lengths.shape)
    if not same(before, [case.dump(values[1]) for values in arrays.values()]):
        raise ContractError(name, "an unchanged state for a tensor without a gradient")


def survives_saving(update: AbstractUpdate, case: BackendUnderTest) -> None:
    """Arrays and numbers of the state are sufficient to continue."""
    name = type(update).__name__
    original, restored = Correction(update, case), Correction(update, case)
    for gradients in steps(shapes=SHAPES):
        original.step(gradients)
        original.lengths([1.0] * len(SHAPES))
    kept = {"arrays": original.state.arrays, "numbers": original.state.numbers}
    loaded = saved_and_loaded(name, {**kept, "average": original.average}, case)
    restored.state.arrays, restored.state.numbers = loaded["arrays"], loaded["numbers"]
    restored.average = loaded["average"]
    for gradients in steps(seed=1, shapes=SHAPES):
        first, second = original.directions(gradients), restored.directions(gradients)
        plain = [0.5] * len(SHAPES)
        if not (same(first, second) and same([original.lengths(plain)], [restored.lengths(plain)])):
            raise ContractError(name, "a state that survives being saved")


UPDATE_CHECKS: dict[str, Callable[[AbstractUpdate, BackendUnderTest], None]] = {
    check.__name__: check
    for check in (
        plain_value,
        downhill,
        finite_at_zero,
        still_where_the_optimizer_is,
        absent_members_keep_their_state,
        survives_saving,
    )
}
"""What :func:`check_update` checks, by name."""
