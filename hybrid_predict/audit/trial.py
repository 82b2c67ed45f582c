"""A few full steps of training with the callback, then without it, from which much is known."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from hybrid_predict.audit.training import now
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.policy import NOTHING
from hybrid_predict.runs.overview import Overview, added_cost, overview

_FIRST = 3
"""Full steps that are not timed: they count operations, allocate and fill caches."""

_LEAST = 2
_MOST = 5
"""Numbers of full steps that are timed with the callback, and as many without it."""


class TrialEnd(Exception):
    """Ends a trial; never leaves the package."""


class Trial(pl.Callback):
    """Times a few full steps of the first epoch, and ends training before its validation.

    It also ends where the run would be plain training: ``plain`` says why. Time in the data loader
    counts. ``plan`` is the callback's plan after one full step, ``cost`` what correcting costs, and
    ``until_skill`` the steps until skill can be known.
    """

    def __init__(self, plugin: HybridPredict) -> None:
        self.plan: Overview | None = None
        self.plain = ""
        self.cost = ""
        self.until_skill = 0
        self._plugin = plugin
        self._most = _MOST
        self._times: list[float] = []
        self._last = 0.0

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Least seconds of a full step without and with the callback; None if too few fit."""
        helped = self._times[_FIRST : _FIRST + self._most]
        plain = self._times[_FIRST + self._most :]
        return (min(plain), min(helped)) if len(plain) >= _LEAST else None

    @property
    def seconds_per_step(self) -> float:
        """Seconds of a full step of plain training, as near as the trial came to one."""
        timed = self._times[_FIRST + self._most :] or self._times[_FIRST:] or self._times
        return min(timed, default=0.0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Limit the steps of a kind, so that both fit into one epoch."""
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        self._most = int(max(_LEAST, min(_MOST, (steps - _FIRST) // 2)))
        self._last = now(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the plan and the time of a full step that ends with this batch."""
        engine = self._plugin.engine
        if self._plugin.ledger.full_steps > len(self._times):
            self._times.append(now(trainer) - self._last)
            self._last = now(trainer)
            if engine is not None and len(self._times) == 1:
                self.plan = overview(engine)
                self.cost = added_cost(engine).removeprefix("; ")
                self.until_skill = engine._policy.until_skill
                idle = NOTHING if engine._state.groups.dormant else ""
                self.plain = engine.ledger.fell_back.removeprefix(FELL_BACK) or idle
            if engine is not None and len(self._times) == _FIRST + self._most:
                engine.detach()
        idle_callback = self.plan is None and trainer.global_step > 0
        timed = len(self._times) >= _FIRST + 2 * self._most
        if timed or trainer.is_last_batch or self.plain or idle_callback:
            raise TrialEnd
