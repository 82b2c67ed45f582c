"""Skill, the share of the following movement that forecasts explain, and their fitted length.

docs/method.md has the rule in words, decision 3 the source of its constants.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

from hybrid_predict.rules.numbers import clip, library, ratio, select

FIRST = 2  # windows for the first estimate
MEMORY = 16  # windows over which the running means average
RESOLUTION = 0.02  # smallest standard deviation of skill between windows
SHORTEST = 0.25  # smallest length of a predicted step, in lengths of the drift
SHORTEST_WINDOW = 20  # smallest number of displacements in a window
SAMPLE = 65_536  # largest number of entries of a tensor that are compared, always the same ones
DRIFT = 0.95  # decay of the drift that is the unit of a forecast's length


def window_length(momentum: float) -> int:
    r"""Return :math:`K = \max (20, \lceil 2 / (1 - \beta_1) \rceil)`, displacements in a window."""
    return max(SHORTEST_WINDOW, math.ceil(2 / (1 - momentum) - 1e-9))


def window_bounds(seen: Any, length: Any, *, short: bool) -> tuple[Any, Any]:
    """Return after which displacements the window around ``seen`` of them begins and ends.

    Windows of length K begin after K / 2, K, 2 K, 3 K, ... displacements, and ``short`` ones first
    after K / 8 and K / 4. What comes before, from 0 on, averages too few for a useful forecast.
    """
    xp, begin = library(seen, length), seen // length * length
    end, first = begin + length, length
    for _ in range(3 if short else 1):
        inside = seen < first
        end, first = xp.where(inside, first, end), first // 2
        begin = xp.where(inside, first, begin)
    before = seen < first
    return xp.where(before, 0, begin), xp.where(before, first, end)


def steps_until_known(length: int, *, short: bool) -> int:
    """Return the number of displacements after which skill is known, see :func:`window_bounds`."""
    seen = 0
    for _ in range(1 + FIRST):
        _, seen = window_bounds(seen, length, short=short)
    return seen


@final
class Pooled(NamedTuple):
    """Sums over tensors of means over one closed window, per unit of the learning rate."""

    dot: Any  # inner product of forecast and displacement
    moved: Any  # squared length of the displacement
    forecast: Any  # squared length of the forecast
    drift: Any  # squared length of the drift
    chance: Any  # variance of the inner product for random signs of the forecast's entries
    following: Any  # squared length of the next forecast


def pool(gram: Any, chance: Any, drift: Any, steps: Any, following: Any) -> Pooled:
    """Sum what one window of so many displacements has measured over its T tensors.

    ``gram`` has the inner products of summed displacement, forecast and, if a length is fitted, the
    direction of the forecast, shape (T, 2 or 3, 2 or 3). ``chance``, the variances of summed
    displacements, and ``drift``, squared lengths, have the shape (T,).
    """
    total = gram.sum(0)
    return Pooled(
        total[0, 1] / steps,
        total[0, 0] / steps**2,
        gram[:, 1, 1].sum(),
        drift.sum(),
        chance.sum() / steps**2,
        following,
    )


@final
class Skill(NamedTuple):
    r"""Running means over windows: the skill of forecasts, and how far they move.

    .. math:: s = c \, |c|, \qquad c = \frac{\sum_k \langle \hat\Delta_k, D_k \rangle}
        {\|\hat\Delta\| \, \|D\|}, \qquad
        \text{lower} = \bar s - \frac{2}{\sqrt n} \max \bigl(\sigma_s, .02, 1.5 \sqrt 3 \,
        \bar v\bigr)

    over the tensors k of a window, with D the sum of its K displacements per unit of the learning
    rate, and :math:`\sigma_s` the standard deviation of s over n windows. For forecasts with random
    signs c has the variance v, and s the standard deviation :math:`\sqrt 3 v`. Lengths are in
    lengths of the drift :math:`\bar d`:

    .. math:: \text{length} = \frac{\|\hat\Delta\|}{\|\bar d\|}, \qquad
        \text{fitted} = \frac{\langle \hat\Delta, D \rangle}
        {K \, \|\hat\Delta\| \, \|\bar d\|}, \qquad
        \text{error} = \frac{\|\hat\Delta - D / K\|^2}{\|D / K\|^2}
    """

    windows: Any = 0
    mean: Any = 0.0  # of s, in [-1, 1]
    square: Any = 0.0  # mean squared deviation of s
    chance: Any = 0.0  # mean of v
    length: Any = 0.0  # of the next predicted step
    fitted: Any = 0.0  # mean least-squares length of the direction in a window
    error: Any = 0.0  # mean; 1 for forecasts of length 0, above 1 for those worse than none

    def summary(self) -> dict[str, float | int]:
        """Return the numbers that are shown to a user."""
        return {
            "mean": self.mean,
            "lower": lower(self),
            "length": self.length,
            "fitted": self.fitted,
            "error": self.error,
            "windows": self.windows,
        }


def add_window(skill: Skill, window: Pooled) -> Skill:
    """Add one window; one without movement or forecast, or with infinite numbers, is skipped."""
    dot, moved, forecast, drift, chance, following = window
    xp = library(*skill, *window)
    sizes = xp.sqrt(xp.maximum(moved, 0.0)) * xp.sqrt(xp.maximum(forecast, 0.0))
    usable = (sizes > 0.0) & (sizes < math.inf) & xp.isfinite(dot) & xp.isfinite(chance)
    cosine = clip(ratio(dot, sizes), -1.0, 1.0)
    windows = skill.windows + 1
    share = 1.0 / clip(windows, 1, MEMORY)
    off = cosine * abs(cosine) - skill.mean
    product = xp.maximum(forecast * drift, 0.0)
    fitted = ratio(dot, xp.sqrt(product)) - skill.fitted
    error = ratio(moved - 2.0 * dot + forecast, moved) - skill.error
    new = Skill(
        windows,
        skill.mean + share * off,
        (1.0 - share) * (skill.square + share * off * off),
        skill.chance + share * (ratio(chance, sizes * sizes) - skill.chance),
        xp.where(drift > 0.0, xp.sqrt(xp.maximum(ratio(following, drift), 0.0)), skill.length),
        skill.fitted + xp.where(drift > 0.0, share * fitted, 0.0),
        skill.error + share * error,
    )
    return select(usable, new, skill)


def known(skill: Skill) -> Any:
    """Return whether there were enough windows for an estimate."""
    return skill.windows >= FIRST


def lower(skill: Skill) -> Any:
    """Return the lower bound of the mean skill; -1 if skill is not known yet."""
    xp, count = library(*skill), clip(skill.windows, FIRST, MEMORY)
    between = xp.sqrt(skill.square * count / (count - 1))
    least = xp.maximum(RESOLUTION, 1.5 * math.sqrt(3.0) * skill.chance)
    bound = skill.mean - 2.0 * xp.maximum(between, least) / xp.sqrt(count)
    return xp.where(known(skill), bound, -1.0)


def enough(skill: Skill) -> Any:
    """Return whether skill and the length of the next predicted step are enough to make it."""
    return (lower(skill) > 0.0) & (skill.length >= SHORTEST)


def add_squares(sums: Any, gram: Any, steps: Any, memory: float) -> Any:
    """Add one window to the least squares of each tensor; skip it if not finite, or without drift.

    ``sums`` are squares of drifts, and their products with mean displacements, shape (T, 2), per
    squared length of the drift of all tensors. ``memory`` is the factor on the earlier windows.
    """
    xp = library(gram)
    pairs = xp.stack([gram[:, 2, 2], gram[:, 0, 2] / steps], -1)
    first = gram[:, 2, 2].sum()
    good = (first > 0.0) & xp.isfinite(gram).all()
    return xp.where(good, memory * sums + pairs / xp.where(first > 0.0, first, 1.0), sums)


def fit(sums: Any, ridge: float) -> Any:
    r"""Return the fitted length of each tensor's forecast in drifts, shape (T,).

    .. math:: \lambda_k = \frac{b_k + \rho a_k \bar\lambda}{(1 + \rho) a_k}, \qquad
        \bar\lambda = \frac{\sum_k b_k}{\sum_k a_k}, \qquad |\lambda_k| \le 1

    with the summed squares a and products b of :func:`add_squares`, shape (T, 2), and the
    ``ridge`` :math:`\rho`, at least 0.
    """
    square, product = sums[:, 0], sums[:, 1]
    total = sums.sum(0)
    pooled = ratio(total[1], total[0] + 1e-6 * total[0])
    weight = ridge * square
    return clip(ratio(product + weight * pooled, square + weight), -1.0, 1.0)
