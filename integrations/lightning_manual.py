"""The Trainer's counters under manual optimization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_clock import SkipData, TrainerClock, counts_by_number
from hybrid_predict.saved import check_count, reading

if TYPE_CHECKING:
    import lightning.pytorch as pl


@final
class ManualClock(TrainerClock):
    """The Trainer's clock under manual optimization: one ``training_step`` is one full step.

    The Trainer's global step counts the updates of all optimizers, so a full step of n updates and
    k ticks advances it by n k. A scheduler that the module steps within epochs is stepped as often
    per step as the module does per full step. A scheduler that it steps only at the end of epochs
    is not changed, because epochs are shortened already.
    """

    _counter = "manual_optimization.optim_step_progress"

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        # This assumes one step of each optimizer per training step; `advance` verifies it.
        self._updates = len(trainer.optimizers)
        super().__init__(trainer, skip_data, epochs)
        self._start = self.global_step
        self._origin = self._full_steps = 0
        self._by_module: dict[int, int] = {}
        self._added: dict[int, int] = {}
        self._positions = self._all_positions()

    def open(self) -> None:
        """Record the positions of schedulers before a full step."""
        self._positions = self._all_positions()

    def advance(self, ticks: int, steps: int, full_steps: int) -> None:
        """Advance the Trainer's counters after a full step, whose updates are checked.

        The first full step has to update; later ones may skip a batch.

        Raises:
            UnsupportedSetupError: If it made other updates than the run's length assumes.
        """
        updates = self._trainer.global_step - self.global_step
        by_steps = self._by_steps <= self._by_epochs
        idle = updates == 0 and full_steps == 1
        if idle or (by_steps and updates not in (0, self._updates)):
            remedy = (
                "Set max_epochs, not max_steps." if updates else "Step the optimizers in every "
                "training_step, or let the Trainer accumulate gradients with automatic "
                "optimization."
            )  # fmt: skip
            raise UnsupportedSetupError(
                "training_step",
                f"{self._updates if by_steps else 'at least 1'} optimizer steps in each",
                updates,
                f"{remedy} Or remove HybridPredict.",
            )
        super().advance(ticks, steps, full_steps)

    def _all_positions(self) -> dict[int, int]:
        """Return the number of steps of each scheduler that counts them."""
        configs = enumerate(self._trainer.lr_scheduler_configs)
        return {
            k: _position(config.scheduler)
            for k, config in configs
            if not isinstance(config.scheduler, ReduceLROnPlateau)
        }

    def _step_schedulers(self, steps: int) -> None:
        self._full_steps += 1
        for k, position in self._all_positions().items():
            by_module = self._by_module.get(k, 0) + position - self._positions[k]
            self._by_module[k] = by_module
            if position > self._positions[k] and not self._trainer.is_last_batch:
                self._added.setdefault(k, 0)
            if k not in self._added:  # stepped at the end of epochs, if at all
                continue
            # The module's number of steps per full step, times the run's steps.
            due = by_module * (steps - self._origin) // self._full_steps
            more = max(0, due - by_module - self._added[k])
            for _ in range(more):
                self._trainer.lr_scheduler_configs[k].scheduler.step()  # type: ignore[call-arg]
            self._added[k] += more

    def state_dict(self) -> dict[str, Any]:
        """Return all counts as primitives."""
        return {
            **super().state_dict(),
            "start": self._start,
            "origin": self._origin,
            "full_steps": self._full_steps,
            "by_module": {str(k): count for k, count in self._by_module.items()},
            "added": {str(k): count for k, count in self._added.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Load a state as :meth:`TrainerClock.load_state_dict` does."""
        with reading("clock"):
            self._start = check_count("start", state["start"])
            stayed = super().load_state_dict(state)
            self._origin = check_count("origin", state["origin"]) if stayed else self.steps
            if stayed:
                self._full_steps = check_count("full_steps", state["full_steps"])
                self._by_module = counts_by_number(state, "by_module")
                self._added = counts_by_number(state, "added")
            return stayed

    def _steps_since(self, state: dict[str, Any]) -> int:
        updates = int(state["global_step"]) - self._start
        per_step = updates / int(state["steps"]) if updates else self._updates
        return round(super()._steps_since(state) / per_step)


def _position(scheduler: Any) -> int:
    """Return the number of steps of a scheduler; a chained one has them in its parts."""
    if isinstance(scheduler, ChainedScheduler):
        return _position(scheduler._schedulers[0])
    return int(scheduler.last_epoch)
