"""A few full steps of training with the callback, then without it, from which much is known."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from hybrid_predict.audit.meter import now
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.policy import NOTHING
from hybrid_predict.runs.overview import Overview, added_cost, overview

_FIRST = 3
"""Full steps before the clock starts: they count operations, allocate and fill caches."""

_LEAST = 2
"""Smallest number of full steps that are timed with the callback, and without it."""

_PATIENCE = 10.0
"""Seconds after which no further step of a kind is timed."""


class TrialEnd(Exception):
    """Ends a trial; never leaves the package."""


class Trial(pl.Callback):
    """Ends training once it has timed at most ``most`` full steps of either kind.

    Unless it goes ``on`` over epochs, the trial also ends with the last batch of an epoch, before
    validation and checkpoints, and where the run would be plain training: ``plain`` says why. Time
    in the data loader counts. ``plan`` is the callback's plan after one full step, ``cost`` what
    correcting costs, and ``until_skill`` the steps until skill can be known.
    """

    def __init__(self, plugin: HybridPredict, most: int = 20, *, on: bool = False) -> None:
        self.plan: Overview | None = None
        self.plain = ""
        self.cost = ""
        self.until_skill = 0
        self._plugin = plugin
        self._most = most
        self._on = on
        self._early: list[float] = []
        self._with: list[float] = []
        self._without: list[float] = []
        self._steps = 0
        self._last = 0.0

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Least seconds of a full step without and with the callback; None if too few fit."""
        if min(len(self._without), len(self._with)) < _LEAST:
            return None
        return min(self._without), min(self._with)

    @property
    def seconds_per_step(self) -> float:
        """Seconds of a full step of plain training, as near as the trial came to one."""
        return min(self._without or self._with or self._early or [0.0])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Limit the steps of a kind, so that both fit into one epoch."""
        if not self._on:
            steps = trainer.num_training_batches / trainer.accumulate_grad_batches
            self._most = int(max(_LEAST, min(self._most, (steps - _FIRST) // 2)))
        self._last = now(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the plan and the time of a full step that ends with this batch."""
        taken = self._plugin.ledger.full_steps
        if self.plan is None and taken:
            self._take_plan()
        if self.plan is None and trainer.global_step > 0:
            raise TrialEnd
        if taken > self._steps:
            self._steps = taken
            self._take_time(trainer)
        over = trainer.is_last_batch or self.plain
        if self._ended(self._without) or (over and not self._on):
            raise TrialEnd

    def _take_plan(self) -> None:
        engine = self._plugin.engine
        if engine is not None:
            self.plan = overview(engine)
            self.cost = added_cost(engine).removeprefix("; ")
            self.until_skill = engine._policy.until_skill
            idle = NOTHING if engine._state.groups.dormant else ""
            self.plain = engine.ledger.fell_back.removeprefix(FELL_BACK) or idle

    def _take_time(self, trainer: Any) -> None:
        block = self._without if self._ended(self._with) else self._with
        if self._steps <= _FIRST:
            block = self._early
        block.append(now(trainer) - self._last)
        if block is self._with and self._ended(block) and self._plugin.engine is not None:
            self._plugin.engine.detach()
        self._last = now(trainer)

    def _ended(self, block: list[float]) -> bool:
        return len(block) >= self._most or (len(block) >= _LEAST and sum(block) > _PATIENCE)
