"""Running baselines of loss and gradient norms, and the limits derived from them."""

from __future__ import annotations

import math
from typing import Any, final

from hybrid_predict.accounts.saved import check_count
from hybrid_predict.errors import CheckpointError

PAUSE = 16
"""Number of full steps in the pause after the first alarm; each further pause is twice as long."""

MOST_PAUSES = 3
"""Number of pauses; the next alarm ends predicted steps for the rest of the run."""

CALM = 500
"""Number of full steps without an alarm after which the number of pauses returns to 0."""

RISE, PATIENCE = 0.2, 32
"""If the mean loss is a fifth above that of the warm-up for this many full steps, fall back. It has
to be a standard deviation above it too, because a fifth of a loss near 0 is less than its noise."""


@final
class Baseline:
    """Running mean and deviation of a number; outliers are clipped at ``REACH`` deviations.

    Args:
        rough: Smallest deviation as a share of the mean's magnitude.
        least: Smallest deviation, so that equal readings do not turn every other one into an
            outlier.
    """

    REACH, DECAY, LEAST = 6.0, 0.95, 8

    def __init__(self, rough: float = 0.0, least: float = 1e-30) -> None:
        self._rough, self._least = rough, least
        self.mean, self._square, self._count = 0.0, 0.0, 0

    @property
    def known(self) -> bool:
        """Whether there were enough readings for a limit."""
        return self._count >= self.LEAST

    @property
    def deviation(self) -> float:
        """The running standard deviation, above 0."""
        return max(math.sqrt(self._square), self._rough * abs(self.mean), self._least)

    def clipped(self, value: float) -> float:
        """Clip a value to the range that the baseline accepts."""
        reach = self.REACH * self.deviation if self.known else math.inf
        return min(self.mean + reach, max(self.mean - reach, value))

    def add(self, value: float) -> None:
        """Add a reading; one that is not finite is skipped."""
        if not math.isfinite(value):
            return
        off = self.clipped(value) - self.mean if self._count else 0.0
        share = max(1.0 - self.DECAY, 1.0 / (self._count + 1))
        self.mean = self.mean + share * off if self._count else value
        self._square = (1.0 - share) * (self._square + share * off * off)
        self._count += 1

    def state_dict(self) -> list[float]:
        """Return mean, mean square and count."""
        return [self.mean, self._square, self._count]

    def load_state_dict(self, state: list[float]) -> None:
        """Load a state of :meth:`state_dict`."""
        mean, square, count = state
        if not (math.isfinite(mean) and math.isfinite(square) and square >= 0 and count >= 0):
            raise CheckpointError(
                f"state: expected finite baselines, got {state!r}. Resume from another checkpoint."
            )
        self.mean, self._square, self._count = float(mean), float(square), int(count)


@final
class Monitor:
    r"""Keeps baselines of a run's loss and gradient norms, and counts alarms.

    Predicted steps are undone if the loss of the verifying step exceeds
    :math:`\mu + \max(12 \sigma, 3 |\mu|)`, with running mean :math:`\mu` and standard deviation
    :math:`\sigma`, or if the logarithm of an optimizer's gradient norm exceeds its running mean by
    :math:`\max(8 \sigma, \log 100)`.

    Args:
        optimizers: Number of optimizers.
        watch_loss: Whether there is a limit for the loss, and whether its rise counts.
    """

    def __init__(self, optimizers: int, watch_loss: bool = True) -> None:
        self.watch_loss = watch_loss
        self.loss = Baseline(rough=0.02)
        self.norms = [Baseline(least=0.05) for _ in range(optimizers)]
        self.start: float | None = None
        self.mean: float | None = None
        self.counts = {"until": 0, "pauses": 0, "calm": 0, "above": 0}

    @property
    def loss_limit(self) -> float:
        """Loss above which predicted steps are undone; infinite if unwatched or not known yet."""
        if not (self.watch_loss and self.loss.known):
            return math.inf
        return self.loss.mean + max(12 * self.loss.deviation, 3 * abs(self.loss.mean))

    def norm_limit(self, index: int) -> float:
        """Gradient norm of an optimizer above which predicted steps are undone."""
        norm = self.norms[index]
        if not norm.known:
            return math.inf
        return math.exp(min(700.0, norm.mean + max(8 * norm.deviation, math.log(100))))

    @property
    def exhausted(self) -> bool:
        """Whether alarms have come back after too many pauses."""
        return self.counts["pauses"] > MOST_PAUSES

    @property
    def risen(self) -> bool:
        """Whether the loss has exceeded that of the warm-up for too long."""
        return self.counts["above"] >= PATIENCE

    def pausing(self, step: int) -> bool:
        """Whether predicted steps are paused before full step number ``step``."""
        return self.exhausted or step <= self.counts["until"]

    def alarm(self, step: int) -> None:
        """Pause predicted steps after full step number ``step``, for longer each time."""
        self.counts["calm"] = 0
        if step > self.counts["until"]:
            self.counts["until"] = step + PAUSE * 2 ** min(self.counts["pauses"], 20)
            self.counts["pauses"] += 1

    def add(self, loss: float, norms: list[float], *, warmup: bool) -> None:
        """Add the numbers of a full step without an alarm.

        Args:
            loss: Its loss; nan if it is unknown.
            norms: Its gradient norms, one per optimizer; nan if none was measured.
            warmup: Whether it belongs to the warm-up.
        """
        self.counts["calm"] += 1
        if self.counts["calm"] >= CALM and not self.exhausted:
            self.counts["pauses"] = self.counts["calm"] = 0
        for baseline, norm in zip(self.norms, norms, strict=True):
            if 0.0 < norm < math.inf:  # the norm is 0 while a loss is switched off
                baseline.add(math.log(norm))
        if not (self.watch_loss and math.isfinite(loss)):
            return
        clipped = self.loss.clipped(loss)
        self.mean = clipped if self.mean is None else 0.9 * self.mean + 0.1 * clipped
        if warmup or self.start is None:
            self.start = self.mean
        above = self.mean - self.start > max(RISE * abs(self.start), self.loss.deviation)
        self.counts["above"] = self.counts["above"] + 1 if above else 0
        self.loss.add(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return baselines, levels and counts as numbers."""
        return {
            "loss": self.loss.state_dict(),
            "norms": [n.state_dict() for n in self.norms],
            "start": self.start,
            "mean": self.mean,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`.

        Raises:
            CheckpointError: If a number is missing or invalid.
        """
        if len(state["norms"]) != len(self.norms):
            raise CheckpointError(
                f"state: expected norms of {len(self.norms)} optimizers, got "
                f"{len(state['norms'])}. Resume with the optimizers of the saved run."
            )
        self.loss.load_state_dict(state["loss"])
        for baseline, saved in zip(self.norms, state["norms"], strict=True):
            baseline.load_state_dict(saved)
        levels = state["start"], state["mean"]
        if not all(level is None or math.isfinite(level) for level in levels):
            raise CheckpointError(
                f"state: expected finite levels, got {levels!r}. Resume from another checkpoint."
            )
        self.start, self.mean = levels
        self.counts = {name: check_count(name, state["counts"][name]) for name in self.counts}
