"""The movement of one predicted step, for all groups together."""

from __future__ import annotations

from typing import NamedTuple, final

from torch import Tensor

from hybrid_predict.torch.deltas import WeightDelta


@final
class Forecast(NamedTuple):
    """The movement of one predicted step.

    Args:
        delta: The movement.
        owners: Number of the optimizer of each of its tensors.
        drifts: How far the drift of each would move at the same learning rate, 0-dim.
    """

    delta: WeightDelta
    owners: list[int]
    drifts: list[Tensor]
