"""Limits of losses and gradient norms, from running baselines; alarms and their pauses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, final

from hybrid_predict.policy.saving import loaded

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

RISEN = (
    "the training loss stands above that of the warm-up; lower the learning rate, or set "
    "watch_loss=False if the loss may rise, as in reinforcement learning"
)
"""Why a run falls back to plain training."""

EXHAUSTED = f"no more predicted steps: they were paused {MOST_PAUSES} times before"
"""Event of the ledger."""


@final
@dataclass
class Baseline:
    """Running mean and mean squared deviation of a number, and the number of readings."""

    mean: float = 0.0
    square: float = 0.0
    count: int = 0

    def deviation(self, smallest: tuple[float, float]) -> float:
        """Return the running standard deviation, above 0."""
        share, least = smallest
        return max(math.sqrt(self.square), share * abs(self.mean), least)

    def clipped(self, value: float, smallest: tuple[float, float]) -> float:
        """Clip a value to the range that the baseline accepts."""
        if self.count < LEAST:
            return value
        reach = REACH * self.deviation(smallest)
        return min(self.mean + reach, max(self.mean - reach, value))

    def add(self, value: float, smallest: tuple[float, float]) -> None:
        """Add a reading."""
        if self.count:
            share = max(1.0 - DECAY, 1.0 / (self.count + 1))
            off = self.clipped(value, smallest) - self.mean
            self.mean += share * off
            self.square = (1.0 - share) * (self.square + share * off * off)
        else:
            self.mean = value
        self.count += 1


@final
@dataclass
class Limits:
    r"""Baselines of a run's loss and gradient norms, and counts of alarms.

    Predicted steps are undone if the loss of the verifying step exceeds
    :math:`\mu + \max(12 \sigma, 3 |\mu|)`, with running mean :math:`\mu` and standard deviation
    :math:`\sigma`, or if the logarithm of a gradient norm exceeds its running mean by
    :math:`\max(8 \sigma, \log 100)`.

    Args:
        norms: Baselines of the logarithms of gradient norms, one per optimizer.
        loss: Baseline of the loss.
        start: Mean loss at the end of the warm-up; nan before any loss.
        mean: Mean loss now; nan before any loss.
        until: Last full step of the pause.
        pauses: Number of alarms that count.
        calm: Full steps since the last alarm.
        above: Full steps in a row with a mean loss far above that of the warm-up.
        idle: Verifying steps in a row without an update.
    """

    norms: list[Baseline]
    loss: Baseline = field(default_factory=Baseline)
    start: float = math.nan
    mean: float = math.nan
    until: int = 0
    pauses: int = 0
    calm: int = 0
    above: int = 0
    idle: int = 0

    @classmethod
    def of(cls, optimizers: int) -> Limits:
        """Return the limits before the first full step, which are infinite."""
        return cls([Baseline() for _ in range(optimizers)])

    @property
    def largest_loss(self) -> float:
        """Loss above which predicted steps are undone; infinite if not known yet."""
        if self.loss.count < LEAST:
            return math.inf
        return self.loss.mean + max(12 * self.loss.deviation(LOSS), 3 * abs(self.loss.mean))

    @property
    def largest_norms(self) -> list[float]:
        """Gradient norm of each optimizer above which predicted steps are undone."""
        return [
            math.exp(min(norm.mean + max(8 * norm.deviation(NORM), math.log(100)), HIGHEST))
            if norm.count >= LEAST
            else math.inf
            for norm in self.norms
        ]

    @property
    def exhausted(self) -> bool:
        """Whether alarms have come back after too many pauses."""
        return self.pauses > MOST_PAUSES

    @property
    def risen(self) -> bool:
        """Whether the loss has exceeded that of the warm-up for too long."""
        return self.above >= PATIENCE

    def pausing(self, step: int) -> bool:
        """Return whether predicted steps are paused before full step number ``step``."""
        return self.exhausted or step <= self.until

    def alarm(self, step: int) -> None:
        """Pause predicted steps after full step number ``step``, for longer each time."""
        if step > self.until:
            self.until = step + PAUSE * 2 ** min(self.pauses, 20)
            self.pauses += 1
        self.calm = 0
        self.idle = 0

    def learn(self, loss: float, norms: list[float], *, warmup: bool) -> None:
        """Add loss and gradient norms of a full step without an alarm; nan where not measured."""
        self.calm += 1
        if self.calm >= CALM and not self.exhausted:
            self.calm = 0
            self.pauses = 0
        for baseline, norm in zip(self.norms, norms, strict=True):
            if 0.0 < norm < math.inf:  # the norm is 0 while a loss is switched off
                baseline.add(math.log(norm), NORM)
        if math.isfinite(loss):
            self._add_loss(loss, warmup=warmup)

    def _add_loss(self, loss: float, *, warmup: bool) -> None:
        clipped = self.loss.clipped(loss, LOSS)
        deviation = self.loss.deviation(LOSS)
        self.loss.add(loss, LOSS)
        self.mean = clipped if math.isnan(self.mean) else 0.9 * self.mean + 0.1 * clipped
        if warmup or math.isnan(self.start):
            self.start = self.mean
        above = self.mean - self.start > max(RISE * abs(self.start), deviation)
        self.above = self.above + 1 if above else 0

    def state_dict(self) -> dict[str, Any]:
        """Return everything as primitives."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Limits:
        """Return the limits of a :meth:`state_dict`."""
        norms = [loaded(Baseline, numbers) for numbers in state["norms"]]
        return loaded(cls, {**state, "norms": norms, "loss": loaded(Baseline, state["loss"])})
