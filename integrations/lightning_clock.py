"""Lets a Lightning Trainer's own counters tell equivalent steps."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)

from hybrid_predict.errors import UnsupportedSetupError

SkipData = Literal["auto", "draw", "tail", "none"]


class TrainerClock:
    """Advances global step, schedulers and, in epoch-bound runs, batches by the extra ticks.

    Args:
        trainer: The Trainer, at the start of training.
        skip_data: What happens to the batches of steps that are not taken: ``draw`` loads and drops
            them, ``tail`` leaves the end of each epoch unread, ``none`` keeps all batches, so that
            a run sees fewer epochs; ``auto`` draws if the run or a scheduler counts epochs.
        epochs: ``max_epochs`` as the user set it; -1 or None if epochs do not bound the run. Other
            callbacks may raise the Trainer's own for epochs without updates.
    """

    _counter = "automatic_optimization.optim_progress.optimizer.step"

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        self._trainer = trainer
        self._epochs = -1 if epochs is None else epochs
        self.skip_data = self._choose(skip_data)
        self.global_step = self._start = trainer.global_step
        self._first_batch = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        # Where all batches are kept, the run's epochs outlast its clock.
        self.owes_batches = self.skip_data == "none" and self._by_epochs < self._by_steps
        self._scheduler_steps: dict[int, int] = {}

    @property
    def length(self) -> int | float:
        """Full steps of the plain run, from where this one started; infinite if unknown.

        Raises:
            UnsupportedSetupError: If epochs matter and differ in their number of updates.
        """
        now = {self._trainer.accumulate_grad_batches}
        changing = any(
            isinstance(c, GradientAccumulationScheduler) and set(c.scheduling.values()) != now
            for c in self._trainer.callbacks  # type: ignore[attr-defined]
        )
        if changing and (math.isfinite(self._by_epochs) or self.skip_data != "none"):
            raise UnsupportedSetupError(
                "GradientAccumulationScheduler",
                "a run bounded by max_steps alone, that keeps all batches",
                f"max_epochs={self._epochs}, skip_data={self.skip_data!r}",
                "Set Trainer(max_steps=..., max_epochs=-1) and HybridPredict(skip_data='none').",
            )
        return min(self._by_epochs, self._by_steps)

    @property
    def _by_epochs(self) -> int | float:
        per_epoch = self._per_epoch()
        if self._epochs == -1 or math.isinf(per_epoch):
            return math.inf
        return int(per_epoch) * max(self._epochs, 1) - self._start

    @property
    def _by_steps(self) -> int | float:
        steps = self._trainer.max_steps
        return math.inf if steps == -1 else steps - self._start

    def _per_epoch(self) -> int | float:
        """Full steps of an epoch of the plain run; infinite if unknown."""
        batches = self._trainer.num_training_batches
        return batches if math.isinf(batches) else math.ceil(
            batches / self._trainer.accumulate_grad_batches
        )  # fmt: skip

    def unavailable(self) -> str:
        """Why the equivalent clock cannot run on this version of Lightning; empty if it can."""
        loop = self._trainer.fit_loop.epoch_loop
        paths = {
            f"{self._counter}.total.completed": loop,
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
        progress = attrgetter(self._counter)(self._trainer.fit_loop.epoch_loop)
        before = int(progress.total.completed)
        for counts in (progress.total, progress.current):
            counts.ready += step - before
            counts.completed += step - before

    def open(self) -> None:
        """Take note of where the counters stand before a full step."""

    def check(self, full_steps: int) -> None:
        """Check after a full step that the Trainer counts as the length of the run assumes.

        Args:
            full_steps: Full steps of the run so far.
        """

    def advance(self, ticks: int, equivalent: int, batch_idx: int) -> None:
        """Follow the engine's clock after a full step.

        Args:
            ticks: Ticks of the full step; what the Trainer counted in it counts so many times.
            equivalent: Equivalent steps of the run so far, this one included.
            batch_idx: Index of the full step's last batch in the epoch.
        """
        self.global_step += ticks * (self._trainer.global_step - self.global_step)
        self.set_global_step(self.global_step)
        self._step_schedulers(ticks, equivalent, batch_idx)
        if self.skip_data != "none":
            self._skip_batches(equivalent)

    def _choose(self, skip_data: SkipData) -> SkipData:
        if skip_data != "auto":
            return skip_data
        trainer, per_epoch = self._trainer, self._per_epoch()
        epochs = math.inf if self._epochs == -1 else self._epochs
        by_steps = trainer.max_steps != -1 and trainer.max_steps <= per_epoch * epochs
        counts_epochs = any(
            c.interval == "epoch" and not c.reduce_on_plateau for c in trainer.lr_scheduler_configs
        )
        return "none" if by_steps and not (counts_epochs and per_epoch < math.inf) else "draw"

    def _step_schedulers(self, ticks: int, equivalent: int, batch_idx: int) -> None:
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
            # A training step that takes the iterator itself has a fetcher that only hands it out.
            batches_left = getattr(fetcher, "iterator_wrapper", fetcher)
            for _ in range(count):
                next(batches_left)
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
            "start": self._start,
            "global_step": self.global_step,
            "first_batch": self._first_batch,
            "scheduler_steps": {str(k): v for k, v in self._scheduler_steps.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._start, self.global_step = int(state["start"]), int(state["global_step"])
        self._first_batch = int(state["first_batch"])
        self._scheduler_steps = {int(k): int(v) for k, v in state["scheduler_steps"].items()}


class MissedCheckpoints(Callback):
    """Runs after all other callbacks: catches up on the global steps that they wait for.

    A full step of several ticks may jump over a multiple of ``every_n_train_steps``, or over a step
    at which a weight average is to be updated. Such a callback is told the global step that it
    waits for, for the length of one call, and nothing else changes.

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
        """Let every callback see the last step that it waits for and this full step jumped over."""
        before, self.jumped_from = self.jumped_from, None
        if before is None:
            return
        after = trainer.global_step
        for callback in list(trainer.callbacks):  # type: ignore[attr-defined]
            step = self._awaited(callback, before, after)
            if step is None:
                continue
            self._clock.set_global_step(step)
            try:
                callback.on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            finally:
                self._clock.set_global_step(after)

    @staticmethod
    def _awaited(callback: Any, before: int, after: int) -> int | None:
        """The last global step between these that a callback waits for; None without one."""
        if isinstance(callback, ModelCheckpoint):
            every = getattr(callback, "_every_n_train_steps", 0)
            multiple = after // every * every if every > 0 else 0
            return multiple if before < multiple < after else None
        # Only weight averages have this method; versions of Lightning differ in whether there are.
        due = getattr(callback, "should_update", None)
        if due is None or due(step_idx=after - 1):
            return None
        steps = range(after - 1, before, -1)
        return next((step for step in steps if due(step_idx=step - 1)), None)
