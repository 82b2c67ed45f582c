"""Lets a Lightning Trainer's own counters tell equivalent steps."""

from __future__ import annotations

import math
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

SkipData = Literal["auto", "draw", "tail", "none"]


class TrainerClock:
    """Advances global step, schedulers and, in epoch-bound runs, batches by the extra ticks.

    Args:
        trainer: The Trainer, at the start of training.
        skip_data: What happens to the batches of steps that are not taken: ``draw`` loads and drops
            them, ``tail`` leaves the end of each epoch unread, ``none`` keeps all batches, so that
            a run sees fewer epochs; ``auto`` draws if the run or a scheduler counts epochs.
    """

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData) -> None:
        self._trainer = trainer
        self.skip_data = self._choose(skip_data)
        self.owes_batches = False
        self._first_batch = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self._scheduler_steps: dict[int, int] = {}

    def unavailable(self) -> str:
        """Why the equivalent clock cannot run on this version of Lightning; empty if it can."""
        loop = self._trainer.fit_loop.epoch_loop
        paths = {
            "automatic_optimization.optim_progress.optimizer.step.total.completed": loop,
            "batch_progress.current.ready": loop,
            "_should_accumulate": loop,
            "_data_fetcher.fetched": self._trainer.fit_loop,
        }
        for path, holder in paths.items():
            found: Any = holder
            for name in path.split("."):
                if not hasattr(found, name):
                    return f"this version of Lightning has no {type(holder).__name__}.{path}"
                found = getattr(found, name)
        if self.skip_data != "none" and math.isinf(self._trainer.num_training_batches):
            return "the length of an epoch is unknown, so its batches cannot be skipped"
        return ""

    def set_global_step(self, step: int) -> None:
        """Make the Trainer's global step ``step``."""
        loop = self._trainer.fit_loop.epoch_loop
        progress = loop.automatic_optimization.optim_progress.optimizer.step
        before = int(progress.total.completed)
        for counts in (progress.total, progress.current):
            counts.ready += step - before
            counts.completed += step - before

    def advance(self, equivalent: int, global_step: int, batch_idx: int) -> None:
        """Follow the engine's clock after a full step.

        Args:
            equivalent: Equivalent steps of the run so far, this one included.
            global_step: What the Trainer's global step becomes.
            batch_idx: Index of the full step's last batch in the epoch.
        """
        self.set_global_step(global_step)
        self._step_schedulers(equivalent, batch_idx)
        if self.skip_data != "none":
            self._skip_batches(equivalent)

    def _choose(self, skip_data: SkipData) -> SkipData:
        if skip_data != "auto":
            return skip_data
        trainer = self._trainer
        per_epoch = (
            math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
            if (math.isfinite(trainer.num_training_batches))
            else math.inf
        )
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else math.inf
        by_steps = trainer.max_steps != -1 and trainer.max_steps <= per_epoch * (epochs or 0)
        counts_epochs = any(
            c.interval == "epoch" and not c.reduce_on_plateau for c in trainer.lr_scheduler_configs
        )
        return "none" if by_steps and not (counts_epochs and per_epoch < math.inf) else "draw"

    def _step_schedulers(self, equivalent: int, batch_idx: int) -> None:
        trainer = self._trainer
        for k, config in enumerate(trainer.lr_scheduler_configs):
            if config.interval != "step" or config.reduce_on_plateau:
                continue
            by_trainer = int((batch_idx + 1) % config.frequency == 0)
            done = self._scheduler_steps.get(k, 0) + by_trainer
            due = max(done, self._plain_scheduler_steps(equivalent, config.frequency))
            for _ in range(due - done):
                trainer.lightning_module.lr_scheduler_step(config.scheduler, None)
            self._scheduler_steps[k] = due

    def _plain_scheduler_steps(self, equivalent: int, frequency: int) -> int:
        """How often the plain run would have stepped a scheduler after so many full steps."""
        window, batches = self._trainer.accumulate_grad_batches, self._trainer.num_training_batches
        stride = frequency // math.gcd(frequency, window)
        if math.isinf(batches):
            return equivalent // stride
        whole, partial = divmod(int(batches), window)
        epochs, rest = divmod(equivalent, whole + bool(partial))
        per_epoch = whole // stride + (partial > 0 and batches % frequency == 0)
        return epochs * per_epoch + rest // stride

    def _plain_batches(self, equivalent: int) -> int:
        """How many batches the plain run would have used after so many full steps."""
        window, batches = self._trainer.accumulate_grad_batches, self._trainer.num_training_batches
        epochs, rest = divmod(equivalent, math.ceil(batches / window))
        return epochs * int(batches) + min(rest * window, int(batches))

    def _skip_batches(self, equivalent: int) -> None:
        """Catch up with the plain run, but never over a validation or the end of the epoch."""
        trainer, fit_loop = self._trainer, self._trainer.fit_loop
        window, progress = trainer.accumulate_grad_batches, fit_loop.epoch_loop.batch_progress
        at, batches = progress.current.ready, int(trainer.num_training_batches)
        # Within an epoch only differences matter: what an epoch's end cuts off is owed to the next.
        owed = self._first_batch + self._plain_batches(equivalent) - progress.total.ready
        count = min(owed, batches - 1 - at)
        every = trainer.val_check_batch
        if trainer.enable_validation and isinstance(every, int):
            over_epochs = trainer.check_val_every_n_epoch is None
            position = progress.total.ready if over_epochs else at
            count = min(count, -position % every)
        count = max(0, count) // window * window
        self.owes_batches = owed > count
        fetcher = fit_loop._data_fetcher
        assert fetcher is not None
        if self.skip_data == "draw":
            for _ in range(count):
                next(fetcher)
        else:
            fetcher.fetched += count
            fetcher.done = fetcher.length is not None and fetcher.fetched >= fetcher.length
        for counts in (progress.total, progress.current):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + count)
        progress.is_last_batch = fetcher.done

    def state_dict(self) -> dict[str, Any]:
        """Where the run started and what was stepped, as primitives."""
        return {
            "first_batch": self._first_batch,
            "scheduler_steps": {str(k): v for k, v in self._scheduler_steps.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._first_batch = int(state["first_batch"])
        self._scheduler_steps = {int(k): int(v) for k, v in state["scheduler_steps"].items()}


class MissedCheckpoints(Callback):
    """Runs after all other callbacks: saves for multiples of ``every_n_train_steps`` jumped over.

    The checkpoint is told the global step that it waits for, and nothing else changes.

    Args:
        clock: The Trainer's clock.
    """

    def __init__(self, clock: TrainerClock) -> None:
        self._clock = clock
        self.jumped_from: int | None = None

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Let every checkpoint callback see the last multiple that this full step jumped over."""
        before, self.jumped_from = self.jumped_from, None
        if before is None:
            return
        after = trainer.global_step
        for callback in trainer.checkpoint_callbacks:
            every = getattr(callback, "_every_n_train_steps", 0)
            if not isinstance(callback, ModelCheckpoint) or every < 1:
                continue
            multiple = after // every * every
            if before < multiple < after:
                self._clock.set_global_step(multiple)
                try:
                    callback.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
                finally:
                    self._clock.set_global_step(after)
