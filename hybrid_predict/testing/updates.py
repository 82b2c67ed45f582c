"""Checks of a corrected update: form, directions, and a state that can be saved."""

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
        falls: list[float | Tensor] = [1.0] * len(members)
        result = correction(update, self.state, list(members), average, new, cosines, named, falls)
        return result.directions


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
    require(update.bound >= 1.0, update, "a bound of at least 1", update.bound)
    for check in (_check_directions, _check_absent):
        check(update, Corrected(update, history))
    _check_saving(update, Corrected(update, history), Corrected(update, history))


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


def _check_absent(update: AbstractUpdate, corrected: Corrected) -> None:
    """The state of a tensor without a gradient does not change."""
    (first, second, *_), present = steps(SHAPES), [0, 2, 3]
    corrected.directions(first)
    before = [values[1].clone() for values in corrected.state.arrays.values()]
    corrected.directions(second, present)
    unchanged = same(before, [values[1] for values in corrected.state.arrays.values()])
    require(unchanged, update, "an unchanged state for a tensor without a gradient")


def _check_saving(update: AbstractUpdate, original: Corrected, restored: Corrected) -> None:
    """Arrays of the state are sufficient to continue."""
    for gradients in steps(SHAPES):
        original.directions(gradients)
    loaded = reloaded(update, [original.state.arrays, original.average])
    restored.state.arrays, restored.average = loaded
    for gradients in steps(SHAPES, seed=1):
        alike = same(original.directions(gradients), restored.directions(gradients))
        require(alike, update, "a state that survives being saved")
