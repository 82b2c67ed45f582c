"""Whether a run overfits: its validation gets worse while its training loss falls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import final

OVERFITS = "validation gets worse while the training loss falls"
"""Beginning of the event of a run that overfits."""

REMEDY = 'what to do: "My validation loss is worse" in docs/questions.md'
"""Where a user finds what helps."""

AVERAGED = 3  # validations in a mean
LEAST = 6  # validations before which nothing is found: fewer say too little about their scatter
KEPT = 32  # last validations from which the scatter is estimated
MOST_SCATTER = 5.0  # a mean may exceed the smallest one by so many of its standard errors
LEAST_SHARE = 0.05  # ... and by this share of what validation has gained since the first one

_NORMAL = 0.6745 * math.sqrt(6.0)
"""Median size of a second difference of independent normal values of deviation 1."""


@final
@dataclass
class Overfitting:
    r"""Tells from the values of a run's validations, smaller ones are better, whether it overfits.

    It does if the mean of its last three validations exceeds the smallest such mean,
    :math:`\mu`, by more than

    .. math:: \max\left(5 \, \sigma \sqrt{2 / 3}, \; (v_1 - \mu) / 20 \right)

    and its training loss is lower than at :math:`\mu`. Here :math:`v_1` is the first value, and
    :math:`\sigma` the scatter of a value around a straight line through its neighbours: the median
    size of the second differences of the last 32 values, over its expectation for normal noise. It
    overfits until a mean is the smallest one again. Nothing is found before the sixth validation.
    """

    values: tuple[float, ...] = ()  # the last ones
    first: float = math.nan  # nan before it
    smallest: float = math.inf  # smallest mean; infinite before the first one
    loss: float = math.nan  # mean training loss at the smallest mean; nan if unknown
    found: bool = False  # whether the run overfits now

    @property
    def margin(self) -> float:
        """By how much a mean has to exceed the smallest one."""
        error = _scatter(self.values) * math.sqrt(2.0 / AVERAGED)
        return max(MOST_SCATTER * error, LEAST_SHARE * (self.first - self.smallest))

    def add(self, value: float, loss: float) -> None:
        """Add a validation.

        Args:
            value: Its value; one that is not finite does not count.
            loss: Running mean of the training loss; nan if unknown.
        """
        if not math.isfinite(value):
            return
        if math.isnan(self.first):
            self.first = value
        self.values = (*self.values, value)[-KEPT:]
        if len(self.values) < AVERAGED:
            return
        mean = fmean(self.values[-AVERAGED:])
        if mean < self.smallest:
            self.smallest = mean
            self.loss = loss
        if mean <= self.smallest:
            self.found = False
        elif len(self.values) >= LEAST:
            self.found |= mean - self.smallest > self.margin and loss < self.loss


def _scatter(values: Sequence[float]) -> float:
    """Return the scatter around straight lines; equal values, such as rounded ones, say nothing."""
    triples = zip(values, values[1:], values[2:], strict=False)
    sizes = [abs(a - 2.0 * b + c) for a, b, c in triples]
    return median([size for size in sizes if size] or [0.0]) / _NORMAL
