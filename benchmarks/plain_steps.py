"""How many full steps of plain training reach a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXACT = ""
AT_LEAST = "≥"
AT_MOST = "≤"
"""Whether a number is interpolated, or a bound because it lies outside the range measured."""


@dataclass(frozen=True)
class PlainSteps:
    """A number of plain full steps; for a bound, the nearest number that was measured."""

    steps: float
    bound: str = EXACT


def plain_steps_to_reach(
    steps: Sequence[float], losses: Sequence[float], loss: float
) -> PlainSteps:
    r"""Return the fewest full steps with which plain training reaches a given loss.

    Between two runs, each with a schedule of its own length, the loss is interpolated linearly in
    the logarithm of the steps. A run whose final loss is not finite, or not below that of a shorter
    run, is skipped. If the loss is outside the range of the plain losses, the number is a bound.
    """
    known: list[tuple[float, float]] = []
    for budget, value in zip(steps, losses, strict=True):
        if math.isfinite(value) and (not known or value < known[-1][1]):
            known.append((budget, value))
    if not math.isfinite(loss) or not known or loss > known[0][1]:
        return PlainSteps(known[0][0] if known else steps[0], AT_MOST)
    if loss < known[-1][1]:
        return PlainSteps(known[-1][0], AT_LEAST)
    falling = [-value for _, value in known]
    return PlainSteps(math.exp(np.interp(-loss, falling, [math.log(n) for n, _ in known])))
