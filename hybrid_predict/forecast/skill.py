"""Skill: the share of the following movement that the forecasts explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, final

import numpy as np

from hybrid_predict.accounts.saved import check_count, damaged
from hybrid_predict.forecast.window import Reading

FIRST = 2
"""Number of windows for the first estimate."""

MEMORY = 16
"""Number of windows over which the running means average."""

RESOLUTION = 0.02
"""Smallest standard deviation of skill between windows."""

SHORTEST = 0.25
"""Smallest length of a predicted step, in lengths of the drift."""


@final
@dataclass
class Skill:
    r"""Running mean of the skill of forecasts, with an interval, and how far they move.

    .. math:: s = c \, |c|, \qquad c = \frac{\sum_k \langle \hat\Delta_k, D_k \rangle}
        {\|\hat\Delta\| \, \|D\|}, \qquad
        \text{lower} = \bar s - \frac{2}{\sqrt n} \max \bigl(\sigma_s, .02, 1.5 \sqrt 3 \,
        \bar v\bigr)

    over the tensors k of a window, with D the sum of the displacements of its K full steps, divided
    by the learning rate. :math:`\sigma_s` is the standard deviation of s over n windows. With few
    windows it is not reliable, so the bound also uses v, the variance of c for forecasts with
    random signs: for these, s has the standard deviation :math:`\sqrt 3 v`.

    Skill is about the direction of forecasts. Their length has numbers of its own, in lengths of
    the drift :math:`\bar d`:

    .. math:: \text{length} = \frac{\|\hat\Delta\|}{\|\bar d\|}, \qquad
        \text{fitted} = \frac{\langle \hat\Delta, D \rangle}
        {K \, \|\hat\Delta\| \, \|\bar d\|}, \qquad
        \text{error} = \frac{\|\hat\Delta - D / K\|^2}{\|D / K\|^2}

    Args:
        windows: Number of windows.
        mean: Mean skill, in [-1, 1].
        square: Mean squared deviation from the mean skill.
        chance: Mean of v.
        length: Length of the next predicted step.
        fitted: Mean length that least squares gives the direction in a window.
        error: Mean squared prediction error of the forecasts made before their window, as a share
            of the squared movement. It is 1 for forecasts of length 0, and above 1 for forecasts
            that are worse than none.
    """

    windows: int = 0
    mean: float = 0.0
    square: float = 0.0
    chance: float = 0.0
    length: float = 0.0
    fitted: float = 0.0
    error: float = 0.0

    def add(self, readings: Sequence[Reading], squares: Sequence[float]) -> None:
        """Add the readings of one window, over all tensors that are pooled.

        A window without any movement, without a forecast, or with numbers beyond 32 bits, is
        skipped.

        Args:
            readings: One reading per group of tensors.
            squares: Squared lengths of the next forecasts of these groups, per unit of the rate.
        """
        total = np.sum([one.pooled() for one in readings], axis=0)
        dot, moved, forecast, drift, chance = total.tolist()
        sizes = math.sqrt(max(moved, 0.0)) * math.sqrt(max(forecast, 0.0))
        if not (0.0 < sizes < math.inf and math.isfinite(dot) and math.isfinite(chance)):
            return
        cosine = max(-1.0, min(1.0, dot / sizes))
        self.windows += 1
        share = 1.0 / min(self.windows, MEMORY)
        off = cosine * abs(cosine) - self.mean
        self.mean += share * off
        self.square = (1.0 - share) * (self.square + share * off * off)
        self.chance += share * (chance / sizes**2 - self.chance)
        if drift > 0.0:
            self.length = math.sqrt(sum(squares) / drift)
            self.fitted += share * (dot / math.sqrt(forecast * drift) - self.fitted)
        self.error += share * ((moved - 2.0 * dot + forecast) / moved - self.error)

    @property
    def known(self) -> bool:
        """Whether there were enough windows for an estimate."""
        return self.windows >= FIRST

    @property
    def lower(self) -> float:
        """Lower bound of the mean skill; -1 if skill is not known yet."""
        if not self.known:
            return -1.0
        count = min(self.windows, MEMORY)
        between = math.sqrt(self.square * count / (count - 1))
        least = 1.5 * math.sqrt(3.0) * self.chance
        return self.mean - 2.0 * max(between, RESOLUTION, least) / math.sqrt(count)

    @property
    def enough(self) -> bool:
        """Whether skill and the length of the next predicted step are enough to make it."""
        return self.lower > 0.0 and self.length >= SHORTEST

    def summary(self) -> dict[str, float | int]:
        """Return the numbers that a user looks at."""
        names = ("mean", "lower", "length", "fitted", "error", "windows")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Skill:
        """Make a skill from :meth:`state_dict`.

        Raises:
            CheckpointError: If a number is missing or cannot be.
        """
        found = cls(**{f.name: state[f.name] for f in fields(cls)})
        check_count("windows", found.windows)
        if min(found.square, found.chance) < 0.0 or not all(
            math.isfinite(x) for x in vars(found).values()
        ):
            raise damaged("finite numbers of skill", state)
        return found
