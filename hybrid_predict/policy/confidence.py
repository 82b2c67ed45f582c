"""What closed windows have shown of the forecasts of one kind: skill, length, persistence, advance.

docs/method.md has the rules in words, decisions 3 and 4 the sources of their constants. Lengths are
in lengths of the drift, advances in these per full step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from hybrid_predict.config import MOST_PREDICTED
from hybrid_predict.policy.limits import Mean
from hybrid_predict.policy.verdict import Slopes

FIRST = 2  # windows for the first estimate of skill
MEMORY = 16  # windows over which the running means average
RESOLUTION = 0.02  # smallest standard deviation of skill between windows
SHORTEST = 0.25  # smallest length of a predicted step
SHORTEST_WINDOW = 20  # smallest number of displacements in a window
SAMPLE = 65_536  # largest number of entries of a tensor that a window compares
START = 0.5  # length of a forecast before any window was fitted
FORGETTING = 0.8  # factor on a window's weight in the fitted length with each later window

LONGEST = 4.0  # largest length of a predicted step
MOST = LONGEST * MOST_PREDICTED  # largest advance
REACH = 4.0  # largest advance that needs little evidence
FIRST_ADVANCE, LEAST_ADVANCE = 0.5, 0.1  # the first advance, and the smallest one; less is none
RISE = 4.0  # factor by which the learning rate may exceed that of the last window


def window_length(momentum: float) -> int:
    r"""Return :math:`K = \max (20, \lceil 2 / (1 - \beta_1) \rceil)`, displacements in a window."""
    return max(SHORTEST_WINDOW, math.ceil(2 / (1 - momentum) - 1e-9))


def window_bounds(seen: int, length: int, *, short: bool) -> tuple[int, int]:
    """Return after which displacements the window around ``seen`` of them begins and ends.

    Windows of length K begin after K / 2, K, 2 K, 3 K, ... displacements, and ``short`` ones first
    after K / 8 and K / 4. What comes before, from 0 on, averages too few for a useful forecast.
    """
    begin = seen // length * length
    end = begin + length
    first = length
    for _ in range(3 if short else 1):
        if seen < first:
            end = first
            first //= 2
            begin = first
    return (0, first) if seen < first else (begin, end)


def steps_until_known(length: int, *, short: bool) -> int:
    """Return the number of displacements after which skill is known, see :func:`window_bounds`."""
    seen = 0
    for _ in range(1 + FIRST):
        _, seen = window_bounds(seen, length, short=short)
    return seen


@final
class Window(NamedTuple):
    """What a closed window of K displacements has measured, per unit of the learning rate.

    Numbers are sums over tensors and, but for squares of forecasts, means over displacements: D is
    the mean displacement, F the forecast at the start of the window, of length 1.
    """

    steps: int = 0  # K
    dot: float = 0.0  # <F, D>
    moved: float = 0.0  # |D|²
    forecast: float = 0.0  # |F|²
    drift: float = 0.0  # squared length of the drift
    chance: float = 0.0  # variance of <F, D> for random signs of the entries of F
    late: float = 0.0  # <F', D> with the forecast F' of the window before; 0 without one
    rate: float = 0.0  # largest learning rate of the tensors

    @classmethod
    def summed(cls, windows: Sequence[Window]) -> Window:
        """Return the sums over windows that were closed together."""
        steps, *sums, rates = zip(*windows, strict=True)
        return cls._make([max(steps), *map(math.fsum, sums), max(rates)])

    def scaled(self, length: float) -> Window:
        """Return what it would have measured, but for ``late``, of a forecast of another length."""
        square = length * length
        forecast = square * self.forecast
        return self._replace(dot=length * self.dot, forecast=forecast, chance=square * self.chance)


@final
@dataclass
class Skill(Mean):
    r"""Running mean over windows of the share of the movement that forecasts explain.

    .. math:: s = c \, |c|, \qquad c = \frac{\sum_k \langle \hat\Delta_k, D_k \rangle}
        {\|\hat\Delta\| \, \|D\|}, \qquad
        \text{lower} = \bar s - \frac{2}{\sqrt n} \max \bigl(\sigma_s, .02, 1.5 \sqrt 3 \,
        \bar v\bigr)

    over the tensors k of a window, with D the sum of its K displacements per unit of the learning
    rate, and :math:`\sigma_s` the standard deviation of s over n windows. For forecasts with random
    signs c has the variance v, and s the standard deviation :math:`\sqrt 3 v`.
    """

    chance: float = 0.0  # mean of v

    def add(self, window: Window) -> bool:
        """Add a window; return whether it counts: it has movement and forecast, and is finite."""
        sizes = math.sqrt(window.moved) * math.sqrt(window.forecast)
        numbers = sizes, window.dot, window.chance
        if not (all(map(math.isfinite, numbers)) and sizes > 0.0):
            return False
        cosine = min(max(window.dot / sizes, -1.0), 1.0)
        share = self.take(cosine * abs(cosine), 1.0 / MEMORY)
        self.chance += share * (window.chance / (sizes * sizes) - self.chance)
        return True

    @property
    def known(self) -> bool:
        """Whether there were enough windows for an estimate."""
        return self.count >= FIRST

    @property
    def lower(self) -> float:
        """Lower bound of the mean skill; -1 if skill is not known yet."""
        if not self.known:
            return -1.0
        count = min(self.count, MEMORY)
        between = math.sqrt(self.square * count / (count - 1))
        least = max(between, RESOLUTION, 1.5 * math.sqrt(3.0) * self.chance)
        return self.mean - 2.0 * least / math.sqrt(count)


@final
class Thresholds(NamedTuple):
    """What an advance needs."""

    rising: float  # persistence above which the advance doubles to this one
    falling: float  # persistence below which this advance halves
    worth: float  # worth of a predicted step below which it is not reached, or halves


NEAR = Thresholds(rising=0.03, falling=-0.05, worth=0.1)  # of advances up to REACH
FAR = Thresholds(rising=0.2, falling=0.1, worth=0.5)  # beyond it


def carried(decay: float, first: int, second: int) -> float:
    r"""Return the share m of a window's movement that momentum carries into the next one.

    .. math:: m = \beta^K \, \frac{K \, (1 - \beta^{K'})}{K' \, (1 - \beta^K)}

    ``decay`` is :math:`\beta` of the average that moves the weights, in [0, 1); the windows have K
    and K' displacements.
    """
    if not decay > 0.0:
        return 0.0
    into = decay**first * (1.0 - decay**second)
    return into * first / (second * (1.0 - decay**first))


@final
@dataclass
class Confidence:
    r"""What is known of the forecasts of one kind and optimizer.

    The fitted length of the next forecast is a mean over the windows w so far, with less weight for
    older ones, of the least-squares length in each, from 0 to 1:

    .. math:: \lambda = \frac{\sum_w .8^{W - w} \,
        \langle \hat\Delta_w, D_w \rangle / (K \|\hat\Delta_w\|^2)}{\sum_w .8^{W - w}}

    The persistence q of a forecast in the second window after it leaves out the share m of the
    first window's movement that momentum alone carries into the second, see :func:`carried`:

    .. math:: q = \frac{\langle \hat\Delta, D' \rangle / K' -
        m \, \langle \hat\Delta, D \rangle / K}{(1 - m) \, \|\hat\Delta\| \, \|\bar d\|}

    The advance doubles while forecasts persist, and halves where they do not.

    References:
        Least squares with forgetting: Ljung, System Identification (1999), chapter 11.
    """

    fits: bool = True  # whether the length is fitted; else it is that of a forecast
    skill: Skill = field(default_factory=Skill)
    best: float = START  # running mean of least-squares lengths, in forecasts
    weight: float = 0.0  # of all windows in it
    unit: float = 1.0  # length of a forecast at the start of the last window, in drifts
    persistence: float = 0.0  # running mean of q
    measured: int = 0  # windows in which q was measured
    advance: float = 0.0  # the drifts that predicted steps add to each full step
    # Sums over verdicts since the last window, in the terms of `Slopes`:
    product: float = 0.0  # Σ <m, Δ>
    own_product: float = 0.0  # Σ <m, D>
    predicted: int = 0  # number of their predicted steps
    verifying: int = 0  # number of these verdicts
    end: float = 0.0  # Σ <g, Δ> of the kind alone, with the gradients g of the verifying steps
    rate: float = 0.0  # learning rate of the last window; 0 before the first one
    latest: Window = field(default_factory=Window)

    @property
    def multiple(self) -> float:
        """Number of forecasts that the next predicted step moves."""
        return min(max(self.best, 0.0), 1.0) if self.fits else 1.0

    @property
    def length(self) -> float:
        """Length of the next predicted step, unless the run has chosen another."""
        return self.multiple * self.unit

    @property
    def enough(self) -> bool:
        """Whether skill and length of the next predicted step are enough to make it."""
        return self.skill.lower > 0.0 and self.length >= SHORTEST

    @property
    def worth(self) -> float:
        r"""How steeply predicted steps went downhill, in full steps; 1 if none was made.

        .. math:: w = \frac{\sum \langle m, \Delta \rangle / P}{\sum \langle m, D \rangle / V}

        over the V verifying steps since the last window and the P predicted steps before them.
        """
        if not self.predicted:
            return 1.0
        full = -self.own_product * self.predicted
        return min(max(-self.product * self.verifying / full, 0.0), 1.0) if full > 0.0 else 0.0

    def summary(self) -> dict[str, float | int]:
        """Return the numbers that are shown to a user, see `SavingsLedger.skills`."""
        skill = self.skill
        shown = {"mean": skill.mean, "lower": skill.lower, "windows": skill.count}
        names = "length", "persistence", "advance"
        return shown | {name: getattr(self, name) for name in names}

    def add(self, window: Window, *, decay: float, planned: bool) -> None:
        """Add a closed window.

        ``decay`` is that of the average that moves the weights, in [0, 1), and ``planned`` whether
        the number of predicted steps is planned.
        """
        before = self.latest
        self.latest = window
        anew = self.renew(window.rate)
        if self.skill.add(window):
            self._fit(window)
        # Else no other window stands right before this one, or the comparison says nothing.
        if before.steps and window.late and not anew:
            self._follow(before, window, decay, planned=planned)
        if window.rate > 0.0:
            self.rate = window.rate

    def _fit(self, window: Window) -> None:
        if not 0.0 < window.drift < math.inf:
            return
        self.unit = math.sqrt(window.forecast / window.drift)
        self.weight = FORGETTING * self.weight + 1.0
        self.best += (window.dot / window.forecast - self.best) / self.weight

    def _follow(self, before: Window, window: Window, decay: float, *, planned: bool) -> None:
        """Measure the persistence of the forecast of the window before, and change the advance."""
        share = carried(decay, before.steps, window.steps)
        square = (1.0 - share) * math.sqrt(before.forecast * before.drift)
        if not 0.0 < square < math.inf:
            return
        number = (window.late - share * before.dot) / square
        noise = math.sqrt(before.chance) / square
        if not math.isfinite(number + noise):
            return
        mean = 0.5 * (self.persistence + number) if self.measured else number
        gained = self.worth
        if planned:
            gained = 0.0 if self.end > 0.0 else 1.0
        doubled = min(max(2.0 * self.advance, FIRST_ADVANCE), MOST)
        here = FAR if self.advance > REACH else NEAR
        there = FAR if doubled > REACH else NEAR
        if min(mean, number) < here.falling or gained < here.worth:
            self.advance *= 0.5
        elif min(mean, number) - 2.0 * noise > there.rising and gained >= there.worth:
            self.advance = doubled
        if planned and self.end == 0.0:
            self.advance = min(self.advance, FIRST_ADVANCE)
        if self.advance < LEAST_ADVANCE:
            self.advance = 0.0
        self.persistence = mean
        self.measured += 1
        self._forget_verdicts()

    def _forget_verdicts(self) -> None:
        self.product = self.own_product = self.end = 0.0
        self.predicted = self.verifying = 0

    def weigh(self, slopes: Slopes, end: float, predicted: int) -> None:
        r"""Take in the slopes of predicted steps that stand, if they are finite.

        ``end`` is the slope :math:`\langle g, \Delta \rangle` of the kind's movement where it ends,
        with the verifying step's gradient g.
        """
        if math.isfinite(slopes.product) and math.isfinite(slopes.own_product + end):
            self.product += slopes.product
            self.own_product += slopes.own_product
            self.end += end
            self.predicted += predicted
            self.verifying += 1

    def renew(self, rate: float) -> bool:
        """Begin the advance anew at a learning rate far above that of the last window.

        Return whether that is so.
        """
        anew = 0.0 < RISE * self.rate < rate
        if anew:
            self.advance = self.persistence = 0.0
            self.measured = 0
            self._forget_verdicts()
        return anew
