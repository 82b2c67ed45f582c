"""Skill: the share of the following movement that the forecasts explain."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecast.window import Reading

FIRST = 2
"""Number of windows for the first estimate."""

MEMORY = 16
"""Number of windows over which the running means average."""

RESOLUTION = 0.02
"""Smallest standard deviation of skill and of fitted length between windows."""

SHORTEST = 0.25
"""Smallest lower bound of the fitted length for predicted steps, in lengths of the drift."""


@final
@dataclass
class Skill:
    r"""Running mean of the skill of forecasts, with an interval.

    .. math:: s = c \, |c|, \qquad c = \frac{\sum_k \langle \hat\Delta_k, D_k \rangle}
        {\|\hat\Delta\| \, \|D\|}, \qquad
        \text{lower} = \bar s - \frac{2}{\sqrt n} \max \bigl(\sigma_s, .02, 1.5 \sqrt 3 \,
        \bar v\bigr)

    over the tensors k of a window, with D the sum of the displacements of its full steps, divided
    by the learning rate. :math:`\sigma_s` is the standard deviation of s over n windows. With few
    windows it is not reliable, so the bound also uses v, the variance of c for forecasts with
    random signs: for these, s has the standard deviation :math:`\sqrt 3 v`.

    Args:
        windows: Number of windows.
        mean: Mean skill, in [-1, 1].
        square: Mean squared deviation from the mean skill.
        chance: Mean of v.
        length: Mean fitted length, in lengths of the drift.
        spread: Mean squared deviation from the mean fitted length.
    """

    windows: int = 0
    mean: float = 0.0
    square: float = 0.0
    chance: float = 0.0
    length: float = 0.0
    spread: float = 0.0

    def add(self, readings: Iterable[Reading]) -> None:
        """Add the readings of one window, over all tensors that are pooled.

        A window without any movement, without a forecast, or with numbers beyond 32 bits, is
        skipped.
        """
        each = list(readings)
        parts = [one.pooled() for one in each]
        dot, moved, forecast, chance = map(sum, zip(*parts, strict=True))
        sizes = math.sqrt(max(moved, 0.0)) * math.sqrt(max(forecast, 0.0))
        if not (0.0 < sizes < math.inf and math.isfinite(dot) and math.isfinite(chance)):
            return
        cosine = max(-1.0, min(1.0, dot / sizes))
        pairs = zip(each, parts, strict=True)
        length = sum(one.length * square for one, (_, _, square, _) in pairs) / forecast
        self.windows += 1
        share = 1.0 / min(self.windows, MEMORY)
        off = cosine * abs(cosine) - self.mean
        self.mean += share * off
        self.square = (1.0 - share) * (self.square + share * off * off)
        self.chance += share * (chance / sizes**2 - self.chance)
        off = length - self.length
        self.length += share * off
        self.spread = (1.0 - share) * (self.spread + share * off * off)

    @property
    def known(self) -> bool:
        """Whether there were enough windows for an estimate."""
        return self.windows >= FIRST

    @property
    def lower(self) -> float:
        """Lower bound of the mean skill; -1 if skill is not known yet."""
        if not self.known:
            return -1.0
        return self.mean - self._error(self.square, 1.5 * math.sqrt(3.0) * self.chance)

    @property
    def shortest(self) -> float:
        """Lower bound of the mean fitted length, in lengths of the drift; -1 if not known."""
        return self.length - self._error(self.spread) if self.known else -1.0

    def _error(self, square: float, least: float = 0.0) -> float:
        """Two standard errors of a running mean, from the mean squared deviation."""
        count = min(self.windows, MEMORY)
        between = math.sqrt(square * count / (count - 1))
        return 2.0 * max(between, RESOLUTION, least) / math.sqrt(count)

    @property
    def enough(self) -> bool:
        """Whether skill and fitted length are high enough for predicted steps."""
        return self.lower > 0.0 and self.shortest >= SHORTEST

    def summary(self) -> dict[str, float | int]:
        """Return mean, lower bound, fitted length and number of windows."""
        return {
            "mean": self.mean,
            "lower": self.lower,
            "length": self.length,
            "windows": self.windows,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Skill:
        """Make a skill from :meth:`state_dict`.

        Raises:
            CheckpointError: If a number is missing or not finite.
        """
        found = cls(**{f.name: state[f.name] for f in fields(cls)})
        if found.windows < 0 or not all(math.isfinite(x) for x in vars(found).values()):
            raise CheckpointError(
                f"state: expected finite numbers of skill, got {state!r}. "
                "Resume from another checkpoint."
            )
        return found
