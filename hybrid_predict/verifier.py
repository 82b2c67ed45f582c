"""Reads measurements late, turns them into verdicts, and lets verdicts govern what follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hybrid_predict.distributed import rank_zero_logger
from hybrid_predict.forecaster import Forecaster
from hybrid_predict.gradients import GradientInfo, LateReader
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.verification import LossTrend, Verdict, judge
from hybrid_predict.window import StepRecord, Window, unpack

logger = rank_zero_logger(__name__)

IDLE = "every horizon is 0"
"""Why a forecast of length zero is rejected; unlike the others no reason to shorten horizons."""


@dataclass(frozen=True)
class Reading:
    """The measurements of one full step once they are read.

    Args:
        step: Number of the full step.
        applied: Whether a forecast was applied before it.
        info: Its loss and gradients.
        verdict: The verdict on its forecast, None if it had none.
    """

    step: int
    applied: bool
    info: GradientInfo
    verdict: Verdict | None

    @property
    def credited(self) -> bool:
        """Whether an applied forecast has earned its credit."""
        return self.applied and self.verdict is not Verdict.REJECTED


class Verifier:
    """Holds the measurements under way and tells when forecasts do not pay.

    Args:
        lag: Full steps between a measurement and its reading.
        ledger: Where verdicts are counted.
    """

    def __init__(self, lag: int, ledger: SavingsLedger) -> None:
        self.misses = 0
        self.rises = 0
        self._reader = LateReader(lag)
        self._ledger = ledger
        self._trend = LossTrend()
        self._late: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def push(self, step: int, window: Window, late_counts: list[tuple[Tensor, Tensor]]) -> None:
        """Queue the measurements of a full step.

        Args:
            step: Its number.
            window: What was measured.
            late_counts: Optimizer counts to correct if the step turns out to have been undone.
        """
        self._reader.push(window.tag(step), window.measurements())
        if late_counts:
            self._late[step] = late_counts

    @property
    def lag(self) -> int:
        """Full steps between a measurement and its reading."""
        return self._reader.lag

    @lag.setter
    def lag(self, lag: int) -> None:
        """Change it, when a run with another lag is resumed."""
        self._reader.lag = lag

    def read(self, forecaster: Forecaster, *, early: bool = False) -> Reading | None:
        """Judge the step whose turn it is; ``early`` the oldest one even before its turn."""
        item = self._reader.pop(early)
        if item is None:
            return None
        tag, values = item
        info = unpack(values, tag["rows"])
        late = self._late.pop(tag["step"], [])
        if not info.finite:
            for count, advance in late:
                count.sub_(advance)
        rising = self._trend.add(info, tag["warmup"])
        self.rises = self.rises + 1 if rising and tag["applied"] else 0
        verdict = self._judge(tag, info, forecaster) if tag["forecast"] else None
        return Reading(tag["step"], tag["applied"], info, verdict)

    def drain(self, forecaster: Forecaster) -> None:
        """Judge everything under way."""
        while self.read(forecaster, early=True) is not None:
            pass

    def unpaid(self, patience: int) -> str:
        """Why forecasts do not pay, once ``patience`` full steps have said so; else empty."""
        if self.misses >= patience:
            return f"{self.misses} forecasts in a row were rejected"
        if self.rises >= patience:
            return "the training loss stands above where forecasts began"
        return ""

    def _judge(self, tag: dict[str, Any], info: GradientInfo, forecaster: Forecaster) -> Verdict:
        before = forecaster.horizons
        if info.finite and info.alignments:
            forecaster.update(sorted(tag["rows"]), info.alignments)
        verdict = judge(info, before, forecaster.horizons)
        reason = tag["refused"]
        if not reason and not info.finite:
            reason = "loss or gradient was not finite"
        if reason:
            verdict = Verdict.REJECTED
            if reason != IDLE:
                forecaster.reject()
            if self._ledger.record(tag["step"], f"forecast rejected: {reason}"):
                logger.info("Full step %d: forecast rejected: %s.", tag["step"], reason)
        self.misses = self.misses + 1 if reason else 0
        self._ledger.count(verdict.value)
        return verdict

    def state_dict(self) -> dict[str, Any]:
        """Rejections in a row, the loss's trend and the measurements under way."""
        queue = self._reader.state_dict()
        counts = {"misses": self.misses, "rises": self.rises}
        return {**counts, "trend": self._trend.state_dict(), "queue": queue}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.misses, self.rises = int(state["misses"]), int(state["rises"])
        self._trend.load_state_dict(state["trend"])
        self._reader.load_state_dict(state["queue"])


def make_record(step: int, window: Window, ticks: int, reading: Reading | None) -> StepRecord:
    """What to report about a full step: itself, and the step whose turn it was to be read."""
    record = StepRecord(step, window.phase, window.horizon, ticks)
    if reading is None:
        return record
    info = reading.info
    return replace(
        record,
        read_step=reading.step,
        loss=None if math.isnan(info.loss) else info.loss,
        alignment=info.alignment,
        verdict=reading.verdict,
        finite=info.finite,
        residual=None if math.isnan(info.residual) else info.residual,
    )
