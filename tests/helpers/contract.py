"""What every predictor and every corrected update promises, checked on small random tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hybrid_predict.forecast.forecaster import Forecaster
from hybrid_predict.forecast.predictors import Predictor
from hybrid_predict.tensors import lists
from hybrid_predict.updates import AbstractUpdate
from hybrid_predict.updates.correct import correction

PREDICTED: dict[str, tuple[int, ...]] = {
    "matrix": (4, 3),
    "vector": (5,),
    "kernel": (3, 2, 2, 2),
    "scalar": (),
}
"""Shapes of parameters of every kind, by name."""

CORRECTED: dict[str, tuple[int, ...]] = {
    "square": (4, 4),
    "tall": (6, 3),
    "wide": (3, 5),
    "convolution": (4, 2, 3, 3),
}
"""Shapes of hidden matrices, by name."""


def steps(shapes: Mapping[str, tuple[int, ...]], seed: int = 0, count: int = 4) -> Any:
    """Random tensors of 32 bits, one list of them per full step."""
    generator = torch.Generator().manual_seed(seed)
    shaped = shapes.values()
    return [[torch.randn(shape, generator=generator) for shape in shaped] for _ in range(count)]


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors are equal, element by element."""
    return all(map(torch.equal, left, right))


class History:
    """The drift that a predictor forecasts along, for parameters of these shapes."""

    def __init__(
        self,
        predictor: Predictor,
        history: str = "float32",
        shapes: Mapping[str, tuple[int, ...]] = PREDICTED,
    ) -> None:
        self.predictor = predictor
        self._like = [torch.zeros(shape) for shape in shapes.values()]
        self.forecaster = Forecaster(predictor, tuple(shapes), self._like, history, 20, short=False)

    def observe(self, displacement: Sequence[Tensor]) -> None:
        """Observe a displacement per unit of the learning rate."""
        moved = [x.clone() for x in displacement]
        self.forecaster.learn(moved, 1.0, [None] * len(moved), None)

    def forecast(self, rates: float | Sequence[float] = 1.0) -> list[Tensor]:
        """The forecast, of which the form is checked; ``rates`` is one number, or one each."""
        each = [rates] * len(self._like) if isinstance(rates, float) else list(rates)
        delta, _ = self.forecaster.forecast(each)
        assert [x.shape for x in delta.directions] == [x.shape for x in self._like]
        pairs = zip(delta.factors, delta.directions, strict=True)
        return [factor * lists.upcast(direction) for factor, direction in pairs]


def check_predictor(predictor: Predictor, history: str = "float32") -> None:
    """Check that a predictor keeps the contract of its base class."""
    check_frozen(predictor)
    observed = History(predictor, history)
    assert not any(x.any() for x in observed.forecast(3.0)), "forecasts before any step"
    for displacement in steps(PREDICTED):
        observed.observe(displacement)
    check_forecasts(observed)


def check_frozen(method: object) -> None:
    """Hyperparameters are fields of a frozen dataclass."""
    parameters = getattr(type(method), "__dataclass_params__", None)
    assert parameters is not None and parameters.frozen, "is no frozen dataclass"


def check_forecasts(observed: History) -> None:
    """A forecast changes nothing, can be repeated, and is finite; a rate of 0 moves nothing."""
    drift = [x.clone() for x in observed.forecaster.drift]
    first = observed.forecast(0.5)
    observed.forecast(7.0)
    assert same(drift, observed.forecaster.drift), "a forecast changes the drift"
    assert same(first, observed.forecast(0.5)), "a forecast cannot be repeated"
    assert all(x.isfinite().all() for x in first), "a forecast is not finite"
    rates = [float(k % 2) for k in range(len(PREDICTED))]
    still = observed.forecast(rates)[::2]
    assert not any(x.any() for x in still), "moves tensors whose learning rate is 0"


class Corrected:
    """An update with its state and the averaged gradients."""

    def __init__(self, update: AbstractUpdate, history: str = "float32") -> None:
        self.update = update
        self._like = [torch.zeros(shape) for shape in CORRECTED.values()]
        self.state = update.init(self._like, history)
        self.average = lists.zeros(self._like, history)

    def directions(
        self, gradients: Sequence[Tensor], members: Sequence[int] = range(len(CORRECTED))
    ) -> list[Tensor]:
        """The directions of the tensors at these positions after one more gradient."""
        new = [gradients[k].clone() for k in members]
        average = [self.average[k] for k in members]
        named = {f"tensor {k}": self._like[k] for k in members}
        lengths = lists.norms([*new, *average])
        _, cosines = lists.cosines(lengths, lists.dots(new, average))
        lists.average(average, new, self.update.decay)
        falls = [1.0] * len(named)
        members = list(members)
        result = correction(self.update, self.state, members, average, new, cosines, named, falls)
        return result.directions


def check_update(update: AbstractUpdate, history: str = "float32") -> None:
    """Check that a corrected update keeps the contract of its base class."""
    check_frozen(update)
    check_directions(Corrected(update, history))
    check_absent(Corrected(update, history))


def check_directions(corrected: Corrected) -> None:
    """Directions are finite, have unit length, and the first goes downhill."""
    zeros = [torch.zeros(shape) for shape in CORRECTED.values()]
    for direction in corrected.directions(zeros):
        assert direction.isfinite().all(), "not finite where gradients are zero"
    for number, gradients in enumerate(steps(CORRECTED)):
        directions = corrected.directions(gradients)
        for key, direction, gradient in zip(CORRECTED, directions, gradients, strict=True):
            assert abs(float(direction.norm()) - 1.0) < 1e-4, f"no unit length for {key}"
            assert number > 0 or float((direction * gradient).sum()) < 0, f"{key} goes uphill"


def check_absent(corrected: Corrected) -> None:
    """The state of a tensor without a gradient does not change."""
    first, second, *_ = steps(CORRECTED)
    corrected.directions(first)
    before = [values[1].clone() for values in corrected.state.arrays.values()]
    corrected.directions(second, [0, 2, 3])
    after = [values[1] for values in corrected.state.arrays.values()]
    assert same(before, after), "changes the state of a tensor without a gradient"
