"""Forecasts of all tensors, checks of their form, and their slopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.errors import PredictorError
from hybrid_predict.ranks.sums import Counts
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta


@final
class Forecast(NamedTuple):
    """The movement of one predicted step."""

    delta: WeightDelta
    optimizers: list[int]  # number of the optimizer of each of its tensors
    drifts: list[Tensor]  # how far the drift of each would move at the same learning rate, 0-dim


def slopes(
    movement: WeightDelta,
    average: Sequence[Tensor],
    moved: Sequence[Tensor],
    rates: Sequence[float],
    counts: Counts,
) -> Tensor:
    r"""Return inner products with the averaged gradient, and squared lengths, of two movements.

    .. math::
        \Bigl( \sum_k \langle m_k, \Delta_k \rangle, \; \sum_k \|\Delta_k\|^2, \;
        \sum_k \langle m_k, D_k \rangle, \; \sum_k \|D_k\|^2 \Bigr)

    with the predicted movement :math:`\Delta`, averaged gradients m, and displacements D, of which
    ``moved`` are those per unit of the learning rate. The numbers stay on the device, add up over
    the ranks, and are zeros where nothing was predicted.
    """
    rows = []
    counted = counts or [1.0] * len(average)
    for vectors, factors in ((movement.directions, movement.factors), (moved, rates)):
        pairs = list(zip(factors, counted, strict=True))
        dots = lists.scaled(lists.dots(average, vectors), [f * count**2 for f, count in pairs])
        norms = lists.scaled(lists.norms(vectors), [f * count for f, count in pairs])
        rows += [dots.sum(), norms.square().sum()]
    numbers = torch.stack(rows)
    return torch.where(numbers[1] > 0, numbers, torch.zeros_like(numbers))


def check_delta(
    predictor: object, delta: Any, names: Sequence[str], like: Sequence[Tensor]
) -> None:
    """Check the form of a forecast; its numbers are not read, so the host does not wait.

    Raises:
        PredictorError: If it is not a `WeightDelta`, or has other names, shapes or devices.
    """
    subject = f"{type(predictor).__name__}.forecast"
    if not isinstance(delta, WeightDelta):
        raise PredictorError(subject, "a WeightDelta", type(delta).__name__)
    if tuple(delta.names) != tuple(names):
        raise PredictorError(subject, f"the names {list(names)[:3]}...", list(delta.names)[:3])
    for name, factor in zip(names, delta.factors, strict=True):
        if not isinstance(factor, (int, float)):
            raise PredictorError(subject, f"a number as factor of {name}", factor)
    lists.check_forms(subject, dict(zip(names, like, strict=True)), delta.directions)
