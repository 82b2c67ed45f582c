"""The Trainer's counters where ``training_step`` steps the optimizers and schedulers itself."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_clock import SkipData, TrainerClock


class ManualClock(TrainerClock):
    """The clock under manual optimization: one ``training_step`` is one full step.

    The Trainer's global step counts the update of every optimizer, so a full step of n updates that
    ticks k times advances it by n k. A scheduler that every ``training_step`` so far has stepped is
    stepped for the extra ticks too; others, such as those stepped at the end of an epoch, are left
    to the module.

    Args:
        trainer: The Trainer, at the start of training.
        skip_data: See :class:`TrainerClock`.
        epochs: See :class:`TrainerClock`.
    """

    _counter = "manual_optimization.optim_step_progress"

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        super().__init__(trainer, skip_data, epochs)
        self._positions: list[int] = []

    @property
    def _by_epochs(self) -> int | float:
        return super()._by_epochs + self._start - self._first_batch

    @property
    def _by_steps(self) -> int | float:
        # Every optimizer is taken to be stepped once per training step; `check` sees to that.
        steps = super()._by_steps
        return steps if math.isinf(steps) else math.ceil(steps / len(self._trainer.optimizers))

    def open(self) -> None:
        """Take note of where the schedulers stand before a full step."""
        self._positions = [_position(c.scheduler) for c in self._trainer.lr_scheduler_configs]

    def check(self, full_steps: int) -> None:
        """Check that the first training step made the updates that the length counts on.

        Args:
            full_steps: Full steps of the run so far.

        Raises:
            UnsupportedSetupError: If it did not.
        """
        if full_steps != 1:
            return
        updates = self._trainer.global_step - self.global_step
        wanted, by_steps = len(self._trainer.optimizers), self._by_steps <= self._by_epochs
        if updates and (updates == wanted or not by_steps):
            return
        accumulates = (
            "Step the optimizers in every training_step, or let the Trainer accumulate gradients "
            "with automatic optimization."
        )
        raise UnsupportedSetupError(
            "training_step",
            f"{wanted if by_steps else 'at least 1'} optimizer steps in each",
            updates,
            f"{'Set max_epochs, not max_steps.' if updates else accumulates} "
            "Or remove HybridPredict.",
        )

    def _step_schedulers(self, ticks: int, equivalent: int, batch_idx: int) -> None:
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            scheduler: Any = config.scheduler
            stepped = _position(scheduler) - self._positions[k]
            first = equivalent == ticks
            follows = stepped > 0 and (first or self._scheduler_steps.get(k, 0) > 0)
            self._scheduler_steps[k] = int(follows)
            if follows and not isinstance(scheduler, ReduceLROnPlateau):
                for _ in range((ticks - 1) * stepped):
                    scheduler.step()


def _position(scheduler: Any) -> int:
    """How often a scheduler has been stepped; a chain only counts in its parts."""
    if isinstance(scheduler, ChainedScheduler):
        return _position(scheduler._schedulers[0])
    return int(scheduler.last_epoch)
