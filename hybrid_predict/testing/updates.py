"""Checks of a corrected update: form, directions, lengths, and a state that can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from hybrid_predict.testing.contract import check_form, expect, reloaded, require, same, steps
from hybrid_predict.torch import lists
from hybrid_predict.updates import UPDATES, AbstractUpdate
from hybrid_predict.updates.correct import correction

SHAPES: dict[str, tuple[int, ...]] = {
    "square": (4, 4),
    "tall": (6, 3),
    "wide": (3, 5),
    "convolution": (4, 2, 3, 3),
}
"""Shapes of hidden matrices, the kind of parameters that updates are made for."""

ALL = range(len(SHAPES))


@final
class Corrected:
    """An update with its state and the averaged gradients."""

    def __init__(self, update: AbstractUpdate, history: str = "float32") -> None:
        self.update = update
        self._like = [torch.zeros(shape) for shape in SHAPES.values()]
        self.state = update.init(self._like, history)
        self.average = lists.zeros(self._like, history)

    def directions(self, gradients: Sequence[Tensor], members: Sequence[int] = ALL) -> list[Tensor]:
        """Return the directions of the tensors at these positions after one more gradient."""
        new, update = [gradients[k].clone() for k in members], self.update
        average = [self.average[k] for k in members]
        named = {f"tensor {k}": self._like[k] for k in members}
        _, cosines = lists.angles(new, average)
        lists.average(average, new, update.decay)
        result = correction(update, self.state, list(members), average, new, cosines, named)
        unchanged = same(new, [gradients[k] for k in members])
        require(unchanged, update, "a direction() that does not change gradients")
        return result.directions

    def lengths(self, lengths: Sequence[float], members: Sequence[int] = ALL) -> Tensor:
        """Return the lengths if the optimizer's own updates have these lengths."""
        return self.update.lengths(self.state, list(members), torch.tensor(lengths))


def check_update(update: AbstractUpdate, history: str = "float32") -> None:
    """Check that a corrected update keeps its contract.

    Args:
        update: The update, with any hyperparameters.
        history: Type in which averages are stored, ``float32`` or ``bfloat16``.

    Raises:
        ContractError: If it breaks a promise of `AbstractUpdate`.
        PredictorError: If directions have a wrong form.
        ConfigError: If an argument is of another kind, such as a class in place of an object.

    Example:
        >>> from hybrid_predict import SpectralUpdate
        >>> check_update(SpectralUpdate())
    """
    expect("update", update, AbstractUpdate, UPDATES)
    check_form(update, history)
    inside = 0.0 <= update.share <= 1.0 and 0.0 <= update.decay < 1.0
    require(inside, update, "share in [0, 1] and decay in [0, 1)", update)
    bounded = update.bound is None or update.bound >= 1.0
    require(bounded, update, "a bound of at least 1, or None", update.bound)
    for check in (_check_directions, _check_lengths, _check_absent):
        check(update, Corrected(update, history))
    for compare in (_check_saving, _check_owners):
        compare(update, Corrected(update, history), Corrected(update, history))


def _check_directions(update: AbstractUpdate, corrected: Corrected) -> None:
    """Directions are finite, have unit length, and the first goes downhill."""
    zeros = [torch.zeros(shape) for shape in SHAPES.values()]
    finite = all(x.isfinite().all() for x in corrected.directions(zeros))
    require(finite, update, "finite directions where gradients are zero")
    for number, gradients in enumerate(steps(SHAPES)):
        rows = zip(SHAPES, corrected.directions(gradients), gradients, strict=True)
        for key, direction, gradient in rows:
            length = float(direction.norm())
            require(
                abs(length - 1.0) < 1e-4, update, f"a direction of unit length for {key}", length
            )
            downhill = number > 0 or float((direction * gradient).sum()) < 0
            require(downhill, update, f"a direction down the gradient of {key}")


def _check_lengths(update: AbstractUpdate, corrected: Corrected) -> None:
    """Lengths are finite and at least 0, and 0 where the optimizer's own length is 0."""
    for own in ([0.0] * len(SHAPES), [1.0] * len(SHAPES), [0.0, 1e-6, 2.0, 0.0]):
        corrected.directions(steps(SHAPES, count=1)[0])
        lengths = corrected.lengths(own)
        shape = tuple(lengths.shape)
        require(shape == (len(SHAPES),), update, f"lengths of shape ({len(SHAPES)},)", shape)
        positive = lengths.isfinite().all() and (lengths >= 0).all()
        require(positive, update, "finite lengths of at least 0", lengths.tolist())
        still = not lengths[torch.tensor(own) == 0].any()
        require(still, update, "a length of 0 if the optimizer's update has length 0")


def _check_absent(update: AbstractUpdate, corrected: Corrected) -> None:
    """The state of a tensor without a gradient does not change."""
    (first, second, *_), present = steps(SHAPES), [0, 2, 3]
    corrected.directions(first)
    corrected.lengths([1.0] * len(SHAPES))
    before = [values[1].clone() for values in corrected.state.arrays.values()]
    corrected.directions(second, present)
    shape = tuple(corrected.lengths([1.0] * 3, present).shape)
    require(shape == (3,), update, "one length for each member", shape)
    unchanged = same(before, [values[1] for values in corrected.state.arrays.values()])
    require(unchanged, update, "an unchanged state for a tensor without a gradient")


def _check_saving(update: AbstractUpdate, original: Corrected, restored: Corrected) -> None:
    """Arrays and numbers of the state are sufficient to continue."""

    def step(corrected: Corrected, gradients: Sequence[Tensor]) -> list[Tensor]:
        return [*corrected.directions(gradients), corrected.lengths([0.5] * len(SHAPES))]

    for gradients in steps(SHAPES):
        step(original, gradients)
    state = [original.state.arrays, original.state.numbers, original.average]
    loaded = reloaded(update, state)
    restored.state.arrays, restored.state.numbers, restored.average = loaded
    for gradients in steps(SHAPES, seed=1):
        alike = same(step(original, gradients), step(restored, gradients))
        require(alike, update, "a state that survives being saved")


def _check_owners(update: AbstractUpdate, owner: Corrected, other: Corrected) -> None:
    """Lengths need no direction and no array, which another rank may have."""
    arrays = other.state.arrays.items()
    other.state.arrays = {name: [x.to("meta") for x in values] for name, values in arrays}
    own = [0.5] * len(SHAPES)
    for gradients in steps(SHAPES):
        owner.directions(gradients)
        try:
            left, right = ([x.lengths(own), *x.state.numbers.values()] for x in (owner, other))
            alike = same(left, right)
        except RuntimeError:  # numbers of the meta device cannot be read
            alike = False
        require(alike, update, "lengths from numbers that direction() does not write")
