"""Running baselines of loss and gradient norms, and the limits that follow from them."""

from __future__ import annotations

import math
from typing import Any

from hybrid_predict.accounts.saved import check_count
from hybrid_predict.errors import CheckpointError

PAUSE = 16
"""Full steps that predicted steps pause after the first alarm; twice as many after each further."""

MOST_PAUSES = 3
"""The alarm after so many pauses ends predicted steps for good."""

CALM = 500
"""Full steps without alarm after which earlier ones are forgotten."""

RISE, PATIENCE = 0.2, 32
"""A mean loss a fifth above that of the warm-up for so many full steps ends the plug-in's part."""


class Baseline:
    """Running mean and deviation of one number; outliers count no further than ``REACH``.

    Args:
        rough: Deviation that is assumed at least, as a share of the mean's magnitude.
        least: Deviation that is assumed at least, so that one reading like the others does not
            make all further ones outliers.
    """

    REACH, DECAY, LEAST = 6.0, 0.95, 8

    def __init__(self, rough: float = 0.0, least: float = 1e-30) -> None:
        self._rough, self._least = rough, least
        self.mean, self._square, self._count = 0.0, 0.0, 0

    @property
    def known(self) -> bool:
        """Whether there were enough readings to judge by."""
        return self._count >= self.LEAST

    @property
    def deviation(self) -> float:
        """The running standard deviation, never quite zero."""
        return max(math.sqrt(self._square), self._rough * abs(self.mean), self._least)

    def clipped(self, value: float) -> float:
        """The value as far as it counts."""
        reach = self.REACH * self.deviation if self.known else math.inf
        return min(self.mean + reach, max(self.mean - reach, value))

    def add(self, value: float) -> None:
        """Take one reading; one that is not finite is passed over."""
        if not math.isfinite(value):
            return
        off = self.clipped(value) - self.mean if self._count else 0.0
        share = max(1.0 - self.DECAY, 1.0 / (self._count + 1))
        self.mean = self.mean + share * off if self._count else value
        self._square = (1.0 - share) * (self._square + share * off * off)
        self._count += 1

    def state_dict(self) -> list[float]:
        """Mean, square and count."""
        return [self.mean, self._square, self._count]

    def load_state_dict(self, state: list[float]) -> None:
        """Continue from a saved state."""
        mean, square, count = state
        if not (math.isfinite(mean) and math.isfinite(square) and square >= 0 and count >= 0):
            raise CheckpointError(
                f"state: expected finite baselines, got {state!r}. Resume from another checkpoint."
            )
        self.mean, self._square, self._count = float(mean), float(square), int(count)


class Monitor:
    r"""Keeps baselines of a run's loss and gradient norms, and counts alarms.

    A verifying step is undone where its loss exceeds
    :math:`\mu + \max(12 \sigma, 3 |\mu|)`, with the running mean :math:`\mu` and deviation
    :math:`\sigma` of the loss, or where the logarithm of an optimizer's gradient norm exceeds its
    mean by :math:`\max(8 \sigma, \log 100)`.

    Args:
        optimizers: How many there are.
    """

    def __init__(self, optimizers: int) -> None:
        self.loss = Baseline(rough=0.02)
        self.norms = [Baseline(least=0.05) for _ in range(optimizers)]
        self.start: float | None = None
        self.mean: float | None = None
        self.counts = {"until": 0, "pauses": 0, "calm": 0, "above": 0}

    @property
    def loss_limit(self) -> float:
        """The loss above which a verifying step is undone; infinite before it is known."""
        if not self.loss.known:
            return math.inf
        return self.loss.mean + max(12 * self.loss.deviation, 3 * abs(self.loss.mean))

    def norm_limit(self, index: int) -> float:
        """The gradient norm of one optimizer above which a verifying step is undone."""
        norm = self.norms[index]
        if not norm.known:
            return math.inf
        return math.exp(min(700.0, norm.mean + max(8 * norm.deviation, math.log(100))))

    @property
    def exhausted(self) -> bool:
        """Whether alarms came back after too many pauses."""
        return self.counts["pauses"] > MOST_PAUSES

    @property
    def risen(self) -> bool:
        """Whether the loss has stood above that of the warm-up for too long."""
        return self.counts["above"] >= PATIENCE

    def pausing(self, step: int) -> bool:
        """Whether no predicted steps are to be made before full step number ``step``."""
        return self.exhausted or step <= self.counts["until"]

    def alarm(self, step: int) -> None:
        """Pause predicted steps after full step number ``step``, longer each time."""
        self.counts["calm"] = 0
        if step > self.counts["until"]:
            self.counts["until"] = step + PAUSE * 2 ** min(self.counts["pauses"], 20)
            self.counts["pauses"] += 1

    def add(self, loss: float, norms: list[float], *, warmup: bool) -> None:
        """Take the numbers of one full step without an alarm.

        Args:
            loss: Its loss; nan if unknown.
            norms: Its gradient norms, one per optimizer; nan where none was measured.
            warmup: Whether it belongs to the warm-up.
        """
        self.counts["calm"] += 1
        if self.counts["calm"] >= CALM and not self.exhausted:
            self.counts["pauses"] = self.counts["calm"] = 0
        for baseline, norm in zip(self.norms, norms, strict=True):
            if 0.0 < norm < math.inf:  # a loss that is switched off has no gradient at all
                baseline.add(math.log(norm))
        if not math.isfinite(loss):
            return
        clipped = self.loss.clipped(loss)
        self.mean = clipped if self.mean is None else 0.9 * self.mean + 0.1 * clipped
        if warmup or self.start is None:
            self.start = self.mean
        above = self.mean > self.start + RISE * abs(self.start)
        self.counts["above"] = self.counts["above"] + 1 if above else 0
        self.loss.add(loss)

    def state_dict(self) -> dict[str, Any]:
        """Baselines, levels and counts, as numbers."""
        return {
            "loss": self.loss.state_dict(),
            "norms": [n.state_dict() for n in self.norms],
            "start": self.start,
            "mean": self.mean,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: If a number is missing or cannot be one.
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
