"""The Trainer's counters where ``training_step`` steps the optimizers and schedulers itself."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import lightning.pytorch as pl
from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_clock import SkipData, TrainerClock


class ManualClock(TrainerClock):
    """The clock under manual optimization: one ``training_step`` is one full step.

    The Trainer's global step counts the update of every optimizer, so a full step of n updates that
    ticks k times advances it by n k. A scheduler that the module steps within epochs is stepped as
    often per equivalent step as the module does per full step; one that it steps at the end of
    epochs only is left to the module, because epochs are shortened already.

    Args:
        trainer: The Trainer, at the start of training.
        skip_data: See :class:`TrainerClock`.
        epochs: See :class:`TrainerClock`.
    """

    _counter = "manual_optimization.optim_step_progress"

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        super().__init__(trainer, skip_data, epochs)
        self._positions: list[int] = []
        self._counts: dict[int, _SchedulerCounts] = {}
        self._full_steps = 0
        self._seen = trainer.global_step

    @property
    def _by_epochs(self) -> int | float:
        return super()._by_epochs + self._start - self._first_batch

    @property
    def _by_steps(self) -> int | float:
        # Every optimizer is taken to be stepped once per training step; `check` sees to that.
        steps = super()._by_steps
        return steps if math.isinf(steps) else math.ceil(steps / len(self._trainer.optimizers))

    def open(self) -> None:
        """Take note of where global step and schedulers stand before a full step."""
        self._seen = self._trainer.global_step
        self._positions = [_position(c.scheduler) for c in self._trainer.lr_scheduler_configs]

    def check(self, full_steps: int) -> None:
        """Check that a training step made the updates that the length counts on.

        The first one has to make some; later ones may pass over a batch.

        Args:
            full_steps: Full steps of the run so far.

        Raises:
            UnsupportedSetupError: If it did not.
        """
        updates = self._trainer.global_step - self._seen
        wanted, by_steps = len(self._trainer.optimizers), self._by_steps <= self._by_epochs
        if updates == 0 and full_steps > 1:
            return
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
        self._full_steps += 1
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            scheduler: Any = config.scheduler
            if isinstance(scheduler, ReduceLROnPlateau):
                continue
            stepped = _position(scheduler) - self._positions[k]
            counts = self._counts.setdefault(k, _SchedulerCounts())
            counts.by_module += stepped
            counts.in_all += stepped
            counts.within_epochs |= stepped > 0 and not self._trainer.is_last_batch
            if not counts.within_epochs:
                continue
            # As often per equivalent step as the module does per full step.
            due = counts.by_module * equivalent // self._full_steps
            for _ in range(due - counts.in_all):
                scheduler.step()
            counts.in_all = max(counts.in_all, due)

    def state_dict(self) -> dict[str, Any]:
        """Where the run started and what was stepped, as primitives."""
        counts = {str(k): asdict(c) for k, c in self._counts.items()}
        return {**super().state_dict(), "counts": counts, "full_steps": self._full_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._counts = {int(k): _SchedulerCounts(**c) for k, c in state["counts"].items()}
        self._full_steps = int(state["full_steps"])


@dataclass
class _SchedulerCounts:
    by_module: int = 0
    in_all: int = 0
    within_epochs: bool = False


def _position(scheduler: Any) -> int:
    """How often a scheduler has been stepped; a chain only counts in its parts."""
    if isinstance(scheduler, ChainedScheduler):
        return _position(scheduler._schedulers[0])
    return int(scheduler.last_epoch)
