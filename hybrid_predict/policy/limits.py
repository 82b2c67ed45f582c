"""Limits of losses and gradient norms, from running baselines; alarms and their pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

REACH, DECAY, LEAST = 6.0, 0.95, 8
"""A baseline clips readings at so many deviations; decay of its means; readings until it counts."""

LOSS, NORM = (0.02, 1e-30), (0.0, 0.05)
"""Smallest deviations of the loss and of a norm's logarithm, as a share of its mean and absolutely.
With smaller ones, equal readings would turn every other one into an outlier."""

HIGHEST = 80.0  # logarithm of the highest limit of a norm; its exponential fits in 32 bits
PAUSE = 16  # full steps in the pause after the first alarm; each further pause is twice as long
MOST_PAUSES = 3  # the next alarm ends predicted steps for the rest of the run
IDLE = 8  # verifying steps in a row without an update that count as an alarm
CALM = 500  # full steps without an alarm after which the number of pauses returns to 0

RISE, PATIENCE = 0.2, 32
"""Share by which the mean loss, and full steps for which it may stand above that of the warm-up. It
has to be a standard deviation above it too: a fifth of a loss near 0 is less than its noise."""

RETURN = 8
"""Full steps for which the mean loss has to stand far above its lowest value."""

NOISE = 2.5
"""Standard deviations of the loss that are far, beside half of what was gained; in long runs fewer
are reached by chance."""

CHANGED = (
    "the loss has gone back by more than half of what it had gained, as where the targets change; "
    'from now on speedup="auto" makes at most half a predicted step per full step'
)
"""Event of the ledger."""

RISEN = (
    "the training loss stands above that of the warm-up; lower the learning rate, or set "
    "watch_loss=False if the loss may rise, as in reinforcement learning"
)
"""Why a run falls back to plain training."""

EXHAUSTED = f"no more predicted steps: they were paused {MOST_PAUSES} times before"
"""Event of the ledger."""


@dataclass
class Mean:
    """Running mean of readings, their mean squared deviation, and their number."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0

    def take(self, value: float, least: float) -> float:
        """Add a reading, and return its weight: that of an equal mean, but not below ``least``."""
        self.count += 1
        share = max(least, 1.0 / self.count)
        off = value - self.mean
        self.mean += share * off
        self.square = (1.0 - share) * (self.square + share * off * off)
        return share


@final
@dataclass
class Baseline(Mean):
    """Running mean of a number whose outliers are clipped."""

    def deviation(self, smallest: tuple[float, float]) -> float:
        """Return the running standard deviation, above 0."""
        return max(math.sqrt(self.square), smallest[0] * abs(self.mean), smallest[1])

    def add(self, value: float, smallest: tuple[float, float]) -> float:
        """Add a reading, and return it clipped to the range that the baseline accepts."""
        if self.count >= LEAST:
            reach = REACH * self.deviation(smallest)
            value = min(self.mean + reach, max(self.mean - reach, value))
        self.take(value, 1.0 - DECAY)
        return value


@final
@dataclass
class Limits:
    r"""Baselines of a run's loss and gradient norms, and counts of alarms.

    Predicted steps are undone if the loss of the verifying step exceeds
    :math:`\mu + \max(12 \sigma, 3 |\mu|)`, with running mean :math:`\mu` and standard deviation
    :math:`\sigma`, or if the logarithm of a gradient norm exceeds its running mean by
    :math:`\max(8 \sigma, \log 100)`. Limits are infinite until enough is known.

    Targets have :attr:`changed` if for 8 full steps in a row the mean loss m stood above its lowest
    value l since the warm-up, which ended at a mean loss s, by more than

    .. math:: \max \bigl(\tfrac{1}{2} (s - l), 2.5 \, \sigma_l \bigr)

    with the standard deviation that the loss had at l.
    """

    norms: list[Baseline]  # of the logarithms of gradient norms, one per optimizer
    loss: Baseline = field(default_factory=Baseline)
    start: float = math.nan  # mean loss at the end of the warm-up; nan before any loss
    mean: float = math.nan  # mean loss now; nan before any loss
    until: int = 0  # last full step of the pause
    pauses: int = 0  # number of alarms that count
    calm: int = 0  # full steps since the last alarm
    above: int = 0  # full steps in a row with a mean loss far above that of the warm-up
    idle: int = 0  # verifying steps in a row without an update
    least: float = math.inf  # smallest mean loss after the warm-up
    noise: float = 0.0  # standard deviation of the loss then
    back: int = 0  # full steps in a row with a mean loss far above that; stays at `RETURN`

    @property
    def largest_loss(self) -> float:
        """Loss above which predicted steps are undone."""
        if self.loss.count < LEAST:
            return math.inf
        return self.loss.mean + max(12 * self.loss.deviation(LOSS), 3 * abs(self.loss.mean))

    def largest_norm(self, optimizer: int) -> float:
        """Return the norm of an optimizer's gradients above which predicted steps are undone."""
        norm = self.norms[optimizer]
        if norm.count < LEAST:
            return math.inf
        return math.exp(min(norm.mean + max(8 * norm.deviation(NORM), math.log(100)), HIGHEST))

    def loss_cause(self, loss: float | None) -> str:
        """Return what is wrong with the loss of a verifying step; empty if nothing is known."""
        if loss is not None and not math.isfinite(loss):
            return "the loss of a verifying step was not finite"
        high = loss is not None and loss > self.largest_loss
        return "the loss of a verifying step stood far above its mean" if high else ""

    @property
    def exhausted(self) -> bool:
        """Whether alarms have come back after too many pauses."""
        return self.pauses > MOST_PAUSES

    @property
    def risen(self) -> bool:
        """Whether the loss has exceeded that of the warm-up for too long."""
        return self.above >= PATIENCE

    def forget_loss(self) -> None:
        """Forget all that is known of the loss."""
        self.loss = Baseline()
        self.start = math.nan
        self.mean = math.nan
        self.above = 0
        self.least = math.inf
        self.back = 0

    @property
    def changed(self) -> bool:
        """Whether the loss has once gone back as far as only other targets explain."""
        return self.back >= RETURN

    def pausing(self, step: int) -> bool:
        """Return whether predicted steps are paused before full step number ``step``."""
        return self.exhausted or step <= self.until

    def alarm(self, step: int) -> None:
        """Pause predicted steps after full step number ``step``, for longer each time."""
        if step > self.until:
            self.until = step + PAUSE * 2**self.pauses
            self.pauses += 1
        self.calm = 0
        self.idle = 0

    def learn(self, loss: float | None, norms: list[float], *, warmup: bool) -> None:
        """Add loss and gradient norms of a full step without an alarm, as far as they are known."""
        self.calm += 1
        if self.calm >= CALM and not self.exhausted:
            self.calm = 0
            self.pauses = 0
        for baseline, norm in zip(self.norms, norms, strict=True):
            if 0.0 < norm < math.inf:  # the norm is 0 while a loss is switched off
                baseline.add(math.log(norm), NORM)
        if loss is None or not math.isfinite(loss):
            return
        deviation = self.loss.deviation(LOSS)
        clipped = self.loss.add(loss, LOSS)
        self.mean = clipped if math.isnan(self.mean) else 0.9 * self.mean + 0.1 * clipped
        if warmup or math.isnan(self.start):
            self.start = self.mean
        above = self.mean - self.start > max(RISE * abs(self.start), deviation)
        self.above = self.above + 1 if above else 0
        if warmup or self.changed:
            return
        if self.mean < self.least:
            self.least = self.mean
            self.noise = deviation
        gained = 0.5 * (self.start - self.least)
        high = self.mean - self.least > max(gained, NOISE * self.noise)
        self.back = self.back + 1 if high else 0
