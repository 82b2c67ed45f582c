"""A trial: a few full steps of a run with the plug-in are timed, then as many without it."""

from __future__ import annotations

from statistics import fmean
from time import perf_counter
from typing import final

import torch

from hybrid_predict.engine import HybridEngine
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.policy import NOTHING
from hybrid_predict.runs.overview import Overview, overview
from hybrid_predict.updates.spectral import EARLY, SEEN_EVERY

_FIRST = EARLY + 1
"""Full steps that are not timed: they count operations, allocate, and the first corrections take
longer."""

_TIMED = SEEN_EVERY
"""Number of full steps that are timed with the plug-in, and as many without it."""


class TrialEnd(Exception):
    """Ends a trial; never leaves the package."""


@final
class Trial:
    """Times a few full steps, those of the data loader included, and ends the training.

    ``plan`` is the plug-in's plan after one full step, ``plain`` why the run would be plain
    training, and ``shortfall`` why fewer predicted steps are planned than asked for.
    """

    def __init__(self) -> None:
        self.plan: Overview | None = None
        self.plain = ""
        self.shortfall = ""
        self._times: list[float] = []
        self._last = 0.0

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Mean seconds of a full step without and with the plug-in; None in too short a run."""
        helped = self._times[_FIRST : _FIRST + _TIMED]
        plain = helped if self.plain else self._times[_FIRST + _TIMED :]
        return (fmean(plain), fmean(helped)) if len(plain) == _TIMED else None

    def resume(self, device: torch.device) -> None:
        """Start the clock, before a full step that nothing else than full steps came before."""
        self._last = now(device)

    def step(self, engine: HybridEngine, device: torch.device) -> None:
        """Take the plan and the time of a full step, if one has ended since the last call.

        Raises:
            TrialEnd: After the last full step of the trial.
        """
        if engine.ledger.full_steps <= len(self._times):
            return
        self._times.append(now(device) - self._last)
        self._last = now(device)
        if len(self._times) == 1:
            self._begin(engine)
        if len(self._times) == _FIRST + _TIMED:
            if self.plain:
                raise TrialEnd
            engine.detach()
        if len(self._times) == _FIRST + 2 * _TIMED:
            raise TrialEnd

    def _begin(self, engine: HybridEngine) -> None:
        self.plan = overview(engine)
        self.shortfall = engine.schedule.shortfall
        idle = NOTHING if engine._state.groups.dormant else ""
        self.plain = engine.ledger.last_event(FELL_BACK)[1].removeprefix(FELL_BACK) or idle


def now(device: torch.device) -> float:
    """Return seconds of a clock, after the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
