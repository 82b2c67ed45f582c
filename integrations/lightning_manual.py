"""The Trainer's counters under manual optimization."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_clock import SkipData, TrainerClock
from hybrid_predict.saved import check_count

if TYPE_CHECKING:
    import lightning.pytorch as pl


@final
class ManualClock(TrainerClock):
    """The Trainer's clock under manual optimization: one ``training_step`` is one full step.

    The Trainer's global step counts the updates of all optimizers, so a full step of n updates and
    k ticks advances it by n k. A scheduler that the module steps within epochs is stepped as often
    per step as the module does per full step. A scheduler that it steps only at the end of epochs
    is not changed, because epochs are shortened already.

    The arguments are those of :class:`TrainerClock`.
    """

    _counter = "manual_optimization.optim_step_progress"

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        # This assumes one step of each optimizer per training step; `check` verifies it.
        self._updates = len(trainer.optimizers)
        super().__init__(trainer, skip_data, epochs)
        self._positions: list[int] = []
        self._counts: dict[int, _SchedulerCounts] = {}
        self._seen = trainer.global_step

    def open(self) -> None:
        """Record global step and schedulers before a full step."""
        self._seen = self._trainer.global_step
        self._positions = [_position(c.scheduler) for c in self._trainer.lr_scheduler_configs]

    def check(self, full_steps: int) -> None:
        """Check that a training step made the updates that the run's length assumes.

        The first one has to update; later ones may skip a batch.

        Args:
            full_steps: Number of full steps so far.

        Raises:
            UnsupportedSetupError: If it made another number of updates.
        """
        updates = self._trainer.global_step - self._seen
        by_steps = self._by_steps <= self._by_epochs
        enough = updates > 0 or full_steps > 1
        if enough and (updates in (0, self._updates) or not by_steps):
            return
        remedy = (
            "Set max_epochs, not max_steps." if updates else "Step the optimizers in every "
            "training_step, or let the Trainer accumulate gradients with automatic optimization."
        )  # fmt: skip
        raise UnsupportedSetupError(
            "training_step",
            f"{self._updates if by_steps else 'at least 1'} optimizer steps in each",
            updates,
            f"{remedy} Or remove HybridPredict.",
        )

    def _step_schedulers(self, steps: int, batch_idx: int) -> None:
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            scheduler: Any = config.scheduler
            if isinstance(scheduler, ReduceLROnPlateau):
                continue
            stepped = _position(scheduler) - self._positions[k]
            counts = self._counts.setdefault(k, _SchedulerCounts(self.steps))
            counts.full_steps += 1
            counts.by_module += stepped
            counts.in_all += stepped
            counts.within_epochs |= stepped > 0 and not self._trainer.is_last_batch
            if not counts.within_epochs:
                continue
            # The module's number of steps per full step, times the run's steps.
            due = counts.by_module * (steps - counts.origin) // counts.full_steps
            for _ in range(due - counts.in_all):
                scheduler.step()
            counts.in_all = max(counts.in_all, due)

    def state_dict(self) -> dict[str, Any]:
        """Return the start of the run and all counts, as primitives."""
        counts = {str(k): asdict(c) for k, c in self._counts.items()}
        return {**super().state_dict(), "counts": counts}

    def _load(self, state: dict[str, Any]) -> bool:
        same = super()._load(state)
        if same:
            self._counts = {int(k): _SchedulerCounts(**c) for k, c in state["counts"].items()}
            for counts in self._counts.values():
                for name in ("origin", "by_module"):
                    check_count(name, getattr(counts, name))
                check_count("in_all", counts.in_all, counts.by_module)
                check_count("full_steps", counts.full_steps, 1)
        return same

    def _steps_of(self, updates: int, state: dict[str, Any]) -> int:
        seen = int(state["global_step"]) - int(state["start"])
        per_step = seen / state["steps"] if seen else self._updates
        return round(updates / per_step)


@final
@dataclass
class _SchedulerCounts:
    origin: int
    full_steps: int = 0
    by_module: int = 0
    in_all: int = 0
    within_epochs: bool = False


def _position(scheduler: Any) -> int:
    """Number of steps of a scheduler; a chained scheduler has them in its parts."""
    if isinstance(scheduler, ChainedScheduler):
        return _position(scheduler._schedulers[0])
    return int(scheduler.last_epoch)
