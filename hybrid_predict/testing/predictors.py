"""Checks of a predictor: form, purity, learning rates, and a history that can be saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from hybrid_predict.forecast.movement import check_delta
from hybrid_predict.forecast.predictors import PREDICTORS, AbstractPredictor
from hybrid_predict.testing.contract import check_form, expect, reloaded, require, same, steps

SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (4, 3),
    "vector": (5,),
    "kernel": (3, 2, 2, 2),
    "scalar": (),
}
"""Shapes of parameters of every kind, by name."""


@final
class History:
    """A predictor with its state for parameters of these shapes."""

    def __init__(
        self,
        predictor: AbstractPredictor,
        history: str = "float32",
        shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    ) -> None:
        self.predictor = predictor
        self._like = [torch.zeros(shape) for shape in shapes.values()]
        self.state = predictor.init(tuple(shapes), self._like, history)

    def observe(self, displacement: Sequence[Tensor]) -> None:
        """Observe a displacement per unit of the learning rate."""
        self.predictor.observe(self.state, [x.clone() for x in displacement])

    def forecast(self, rates: float | Sequence[float | Tensor] = 1.0) -> list[Tensor]:
        """Return the forecast after checking its form; ``rates`` is one number, or one each."""
        each = [rates] * len(self._like) if isinstance(rates, float) else list(rates)
        delta = self.predictor.forecast(self.state, each)
        check_delta(self.predictor, delta, self.state.names, self._like)
        return list(delta.tensors().values())


def check_predictor(predictor: AbstractPredictor, history: str = "float32") -> None:
    """Check that a predictor keeps its contract.

    Args:
        predictor: The predictor, with any hyperparameters.
        history: Type in which averages are stored, ``float32`` or ``bfloat16``.

    Raises:
        ContractError: If it breaks a promise of `AbstractPredictor`.
        PredictorError: If a forecast has a wrong form.
        ConfigError: If an argument is of another kind, such as a class in place of an object.

    Example:
        >>> from hybrid_predict import MomentumPredictor
        >>> check_predictor(MomentumPredictor())
    """
    expect("predictor", predictor, AbstractPredictor, PREDICTORS)
    check_form(predictor, history)
    observed = History(predictor, history)
    still = not any(x.any() for x in observed.forecast(3.0))
    require(still, predictor, "a forecast of zero before any step")
    for count, displacement in enumerate(steps(SHAPES), 1):
        observed.observe(displacement)
        promise = "a history that counts its displacements"
        require(observed.state.count == count, predictor, promise, observed.state.count)
    _check_forecasts(predictor, observed)
    _check_saving(predictor, observed, History(predictor, history))


def _check_forecasts(predictor: AbstractPredictor, observed: History) -> None:
    """A forecast changes nothing, can be repeated, and is finite; a rate of 0 moves nothing."""
    count, first = observed.state.count, observed.forecast(0.5)
    observed.forecast(7.0)
    unchanged = observed.state.count == count and same(first, observed.forecast(0.5))
    require(unchanged, predictor, "a forecast that changes nothing and can be repeated")
    finite = all(x.isfinite().all() for x in first)
    require(finite, predictor, "a finite forecast of finite displacements")
    rates = [float(k % 2) for k in range(len(SHAPES))]
    for each in (rates, [torch.tensor(rate) for rate in rates]):
        still = not any(x.any() for x in observed.forecast(each)[::2])
        require(still, predictor, "no forecast for a tensor whose learning rate is 0")


def _check_saving(predictor: AbstractPredictor, original: History, restored: History) -> None:
    """The history has arrays shaped like the parameters, and continues alike after being saved."""
    for key, values in original.state.arrays.items():
        shapes = [tuple(x.shape) for x in values]
        promise = f"one array shaped like each parameter in {key!r}"
        require(shapes == list(SHAPES.values()), predictor, promise, shapes)
    state = [original.state.arrays, original.state.numbers]
    restored.state.arrays, restored.state.numbers = reloaded(predictor, state)
    restored.state.count = original.state.count
    for displacement in steps(SHAPES, seed=1):
        alike = same(original.forecast(), restored.forecast())
        require(alike, predictor, "a history that survives being saved")
        original.observe(displacement)
        restored.observe(displacement)
