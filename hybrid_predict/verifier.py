"""Reads measurements late, turns them into verdicts, and lets verdicts govern what follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hybrid_predict.checkpoint import whole
from hybrid_predict.distributed import rank_zero_logger
from hybrid_predict.divergence import Alarm, Answer, DivergenceMonitor, Limits
from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecaster import Forecaster
from hybrid_predict.gradients import GradientInfo, LateReader
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.phases import Phase
from hybrid_predict.support import support
from hybrid_predict.verification import Verdict, judge
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
        support: The compression that its forecast supports.
    """

    step: int
    applied: bool
    info: GradientInfo
    verdict: Verdict | None
    support: float

    @property
    def credited(self) -> bool:
        """Whether an applied forecast has earned its credit."""
        return self.applied and self.verdict is not Verdict.REJECTED


class Verifier:
    """Holds the measurements under way and tells when forecasts do not pay.

    Args:
        lag: Full steps between a measurement and its reading.
        ledger: Where verdicts are counted.
        patience: So many rejections in a row, or full steps with a risen loss, end forecasting.
    """

    def __init__(self, lag: int, ledger: SavingsLedger, patience: int) -> None:
        self.misses = 0
        self.monitor = DivergenceMonitor(patience)
        self._patience = patience
        self._reader = LateReader(lag)
        self._ledger = ledger
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
        step, limits = tag["step"], Limits(*tag["limits"])
        alarm = self.monitor.add(step, info, limits, warmup=tag["warmup"], applied=tag["applied"])
        verdict = self._judge(tag, info, forecaster) if tag["forecast"] else None
        if alarm is not None:
            self._answer(step, alarm, forecaster)
        return Reading(step, tag["applied"], info, verdict, support(tag["supported"], info.novelty))

    def drain(self, forecaster: Forecaster) -> None:
        """Judge everything under way."""
        while self.read(forecaster, early=True) is not None:
            pass

    @property
    def unpaid(self) -> str:
        """Why the run is to be handed over to plain training; empty if it is not."""
        if self.misses >= self._patience:
            return f"{self.misses} forecasts in a row were rejected"
        return self.monitor.unpaid

    def _judge(self, tag: dict[str, Any], info: GradientInfo, forecaster: Forecaster) -> Verdict:
        before = forecaster.horizons
        if info.finite and info.alignments:
            try:
                forecaster.update(sorted(tag["rows"]), info.alignments)
            except Exception:
                self._ledger.count(Verdict.REJECTED.value)
                raise
        verdict = judge(info, before, forecaster.horizons)
        reason = tag["refused"]
        if not reason and not info.finite:
            reason = _cause(info, Limits(*tag["limits"]))
        if reason:
            verdict = Verdict.REJECTED
            if reason != IDLE:
                forecaster.reject()
            if self._ledger.record(tag["step"], f"forecast rejected: {reason}"):
                logger.info("Full step %d: forecast rejected: %s.", tag["step"], reason)
        self.misses = self.misses + 1 if reason else 0
        self._ledger.count(verdict.value)
        return verdict

    def _answer(self, step: int, alarm: Alarm, forecaster: Forecaster) -> None:
        """Do what an alarm asks for, and tell."""
        answer = alarm.answer
        if answer is Answer.SHRINK:
            before = forecaster.horizons
            forecaster.reject()
            if forecaster.horizons == before:  # at their floors already
                self.monitor.pause(step)
                answer = Answer.PAUSE
        reason = f"{alarm.reason}: {answer.value}"
        if self._ledger.record(step, reason):
            logger.warning("Full step %d: %s (%s).", step, reason, alarm.figures)

    def state_dict(self) -> dict[str, Any]:
        """Rejections in a row, the monitor and the measurements under way."""
        monitor, queue = self.monitor.state_dict(), self._reader.state_dict()
        return {"misses": self.misses, "monitor": monitor, "queue": queue}

    @property
    def parts(self) -> tuple[Any, ...]:
        """Every object that :meth:`load_state_dict` gives new attributes to."""
        return self, self._reader, *self.monitor.parts

    def load_state_dict(self, state: dict[str, Any], lag: int, count: int) -> None:
        """Continue from a saved state.

        Args:
            state: What :meth:`state_dict` gave.
            lag: That of the saved run.
            count: Number of forecast parameters.

        Raises:
            CheckpointError: If it cannot be one.
        """
        self.misses = whole("misses", state["misses"])
        self._reader.lag = lag
        self.monitor.load_state_dict(state["monitor"])
        for tag, values in state["queue"]:
            rows = {whole("rows", row) for row in tag["rows"]}
            if len(unpack(values, tag["rows"]).alignments) != len(rows) or max(
                rows, default=0
            ) >= max(1, count):
                raise CheckpointError(
                    f"state: expected measurements of {count} parameters, got rows {sorted(rows)}. "
                    "Resume from another checkpoint."
                )
            if tag.keys() != Window(Phase.WARMUP).tag(0).keys():
                raise CheckpointError(
                    f"state: expected measurements, got {sorted(tag)}. "
                    "Resume from another checkpoint."
                )
        self._reader.load_state_dict(state["queue"])


def _cause(info: GradientInfo, limits: Limits) -> str:
    """Why a full step could not stand."""
    if math.isfinite(info.total_norm) and not math.isinf(info.loss):
        if info.loss > limits.loss or info.total_norm > limits.norm:
            return "loss or gradient stood far above its running mean"
        if math.isfinite(info.loss) or not all(map(math.isfinite, info.alignments)):
            return "the forecast was not finite"
    return "loss or gradient was not finite"


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
