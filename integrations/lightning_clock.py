"""Advances the counters of a Lightning Trainer by predicted steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, final

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_packages import TrainerCallback, package_of
from hybrid_predict.saved import check_count, damaged, reading

if TYPE_CHECKING:
    import lightning.pytorch as pl

SkipData = Literal["auto", "draw", "tail", "none"]


class TrainerClock:
    """Advances the counters of a Lightning Trainer by predicted steps.

    It advances the global step, the schedulers, and in runs bounded by epochs also the batches.
    The *plain run* is the same run without the plug-in.

    Args:
        trainer: The Trainer, at the start of training.
        skip_data: See :class:`HybridPredict`.
        epochs: ``max_epochs`` as the user set it; -1 or None if epochs do not bound the run. Other
            callbacks may change the Trainer's ``max_epochs`` later.

    Attributes:
        steps: Number of steps of the run, as counted by the Trainer.
        global_step: The Trainer's global step after the last full step.
        length: The run's length in steps, including steps before a resume; infinite if unknown.
        jumped_from: The global step before the last full step, if this had several ticks.
    """

    _counter = "automatic_optimization.optim_progress.optimizer.step"
    _updates = 1
    """Increase of the Trainer's global step in one full step."""

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        self._trainer = trainer
        self._epochs = math.inf if epochs in (None, -1) else epochs
        # Lightning's types leave out what these count.
        self._progress: Any = trainer.fit_loop.epoch_loop.batch_progress
        self._epochs_done: Any = trainer.fit_loop.epoch_progress
        self.steps = 0
        self.global_step = trainer.global_step
        self.jumped_from: int | None = None
        self._ahead: dict[int, int] = {}
        self._batches = self._batches_before()
        self._offset = self._plain_steps()
        self._ended = self._plain_epochs()
        self._set_length()
        self.skip_data = self._choose() if skip_data == "auto" else skip_data
        self._refuse_changing_windows()

    def _batches_before(self) -> int:
        """Return how many batches of whole epochs and of this one the Trainer has left behind."""
        batches = self._trainer.num_training_batches
        if math.isinf(batches):
            return 0
        # A batch in which a checkpoint was saved is not processed, and is taken again.
        begun = self._progress.current.processed if self._trainer.fit_loop.restarting else 0
        return int(self._epochs_done.current.processed * batches + begun % batches)

    def _plain_steps(self) -> int:
        """Return the steps in which the plain run, from its start, takes as many batches."""
        if math.isinf(self._per_epoch):
            return 0
        trainer = self._trainer
        epochs, rest = divmod(self._batches, int(trainer.num_training_batches))
        return epochs * int(self._per_epoch) + rest // trainer.accumulate_grad_batches

    def _plain_epochs(self) -> int:
        """Return how many epochs the plain run has ended after as many steps."""
        return int((self._offset + self.steps) // self._per_epoch)

    @property
    def _per_epoch(self) -> float:
        """Steps in an epoch of the plain run."""
        steps = self._trainer.num_training_batches / self._trainer.accumulate_grad_batches
        return math.ceil(steps) if math.isfinite(steps) else steps

    def _set_length(self) -> None:
        limit, self._by_steps = self._trainer.max_steps, math.inf
        if limit != -1:
            self._by_steps = self.steps + math.ceil((limit - self.global_step) / self._updates)
        self._by_epochs = self._epochs * self._per_epoch - self._offset
        self.length = min(self._by_epochs, self._by_steps)

    def _choose(self) -> SkipData:
        limit, in_epochs = self._trainer.max_steps, self._epochs * self._per_epoch
        by_steps = limit != -1 and limit <= in_epochs * self._updates
        unknown, counts_epochs = math.isinf(self._per_epoch), any(self._schedulers("epoch"))
        return "none" if unknown or (by_steps and not counts_epochs) else "draw"

    def _refuse_changing_windows(self) -> None:
        """Refuse epochs with different numbers of updates where epochs matter.

        Raises:
            UnsupportedSetupError: If a callback changes the number of batches per update.
        """
        scheduler = package_of(self._trainer).callbacks.GradientAccumulationScheduler
        now = {self._trainer.accumulate_grad_batches}
        callbacks: list[Any] = self._trainer.callbacks  # type: ignore[attr-defined]
        changing = any(
            isinstance(c, scheduler) and set(c.scheduling.values()) != now for c in callbacks
        )
        if changing and (math.isfinite(self._by_epochs) or self.skip_data != "none"):
            raise UnsupportedSetupError(
                "GradientAccumulationScheduler",
                "a run bounded by max_steps alone, with skip_data='none'",
                f"max_epochs={self._trainer.max_epochs}, skip_data={self.skip_data!r}",
                "Set Trainer(max_steps=..., max_epochs=-1) and HybridPredict(skip_data='none').",
            )

    @property
    def unavailable(self) -> str:
        """Reason why predicted steps cannot be counted in this Trainer; empty if they can."""
        for path in (f"epoch_loop.{self._counter}.total.completed", "_data_fetcher.fetched"):
            try:
                attrgetter(path)(self._trainer.fit_loop)
            except AttributeError:
                return f"this version of Lightning has no fit_loop.{path}"
        if self.skip_data != "none" and math.isinf(self._per_epoch):
            return "the length of an epoch is unknown, so its batches cannot be skipped"
        return ""

    @property
    def outlasts(self) -> bool:
        """Whether the Trainer would continue after the run's last step."""
        if math.isinf(self.length):
            return True
        # The epochs may have batches left that were neither used nor skipped.
        return self._by_epochs < self._by_steps if self.skip_data == "none" else self._owed > 0

    def set_global_step(self, step: int) -> None:
        """Set the Trainer's global step."""
        progress = attrgetter(self._counter)(self._trainer.fit_loop.epoch_loop)
        more = step - int(progress.total.completed)
        for counts in (progress.total, progress.current):
            counts.ready += more
            counts.completed += more

    def open(self) -> None:
        """Record the counters before a full step."""

    def advance(self, ticks: int, steps: int, full_steps: int) -> None:
        """Advance the Trainer's counters after a full step.

        Args:
            ticks: Ticks of the full step; everything that the Trainer counted in it counts this
                often.
            steps: Steps of the run so far, including these ticks.
            full_steps: Full steps of the run so far.
        """
        self.jumped_from = self.global_step if ticks > 1 else None
        self.global_step += ticks * (self._trainer.global_step - self.global_step)
        self.set_global_step(self.global_step)
        self._step_schedulers(steps)
        self.steps = steps
        if self.skip_data != "none":
            self._skip_batches()

    def end_epoch(self) -> None:
        """Step schedulers that count epochs as often as in the plain run.

        The Trainer steps them once per epoch. If epochs have few batches, this run has fewer
        epochs, because each has at least one full step.
        """
        number, before = self._trainer.current_epoch + 1, self._ended
        self._ended = number if self.skip_data == "none" else self._plain_epochs()
        for k, config in self._schedulers("epoch"):
            if self.skip_data != "none":
                plain = self._ended // config.frequency - before // config.frequency
                self._catch_up(k, plain - (number % config.frequency == 0))

    def _schedulers(self, interval: str) -> Iterator[tuple[int, Any]]:
        """Yield number and settings of the schedulers that count steps, or epochs."""
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            if config.interval == interval and not config.reduce_on_plateau:
                yield k, config

    def _step_schedulers(self, steps: int) -> None:
        """Step schedulers that count steps as often as the plain run does up to ``steps``."""
        for k, config in self._schedulers("step"):
            new = range(self.steps + 1, steps + 1)
            plain = sum(self._plain_batch(step) % config.frequency == 0 for step in new)
            self._catch_up(k, plain - (self._progress.current.ready % config.frequency == 0))

    def _catch_up(self, k: int, more: int) -> None:
        """Step a scheduler this many times more than the Trainer does, or wait if it is ahead."""
        ahead = self._ahead.get(k, 0) - more
        for _ in range(-ahead):
            config = self._trainer.lr_scheduler_configs[k]
            self._trainer.lightning_module.lr_scheduler_step(config.scheduler, None)
        self._ahead[k] = max(0, ahead)

    def _plain_batch(self, step: int) -> int:
        """Return the number in its epoch of the last batch in a step of the plain run."""
        window, batches = self._trainer.accumulate_grad_batches, self._trainer.num_training_batches
        if math.isinf(batches):
            return step * window
        return min(((self._offset + step - 1) % int(self._per_epoch) + 1) * window, int(batches))

    @property
    def _owed(self) -> int:
        """Number of batches that the plain run has used more than this run.

        Those that do not fit in an epoch are skipped in the next.
        """
        epochs, rest = divmod(self._offset + self.steps, int(self._per_epoch))
        plain = epochs * int(self._trainer.num_training_batches)
        return plain + rest * self._trainer.accumulate_grad_batches - self._batches

    def _skip_batches(self) -> None:
        """Skip the batches of predicted steps, but no validation and no end of an epoch."""
        trainer, progress = self._trainer, self._progress
        at, batches = progress.current.ready, int(trainer.num_training_batches)
        self._batches = self._epochs_done.current.processed * batches + at
        count = min(self._owed, batches - 1 - at)
        every = trainer.val_check_batch
        if trainer.enable_validation and isinstance(every, int):
            over_epochs = trainer.check_val_every_n_epoch is None
            count = min(count, -(progress.total.ready if over_epochs else at) % every)
        window = trainer.accumulate_grad_batches
        count = max(0, count) // window * window
        fetcher = trainer.fit_loop._data_fetcher
        assert fetcher is not None
        if self.skip_data == "draw":
            # If training_step takes an iterator, the fetcher returns the iterator, not batches.
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
        self._batches += count

    def state_dict(self) -> dict[str, Any]:
        """Return all counts as primitives."""
        return {
            "steps": self.steps,
            "global_step": self.global_step,
            "offset": self._offset,
            "data": [self._trainer.num_training_batches, self._trainer.accumulate_grad_batches],
            "batches": self._progress.total.processed,
            "ended": self._ended,
            "ahead": {str(k): count for k, count in self._ahead.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Load a state of :meth:`state_dict`; if the Trainer has continued since, its counters win.

        Returns:
            Whether the Trainer's counters are those of the state.

        Raises:
            CheckpointError: If an entry is missing or damaged.
        """
        with reading("clock"):
            for name in ("steps", "global_step", "batches", "ended"):
                check_count(name, state[name])
            if not isinstance(state["offset"], int) or len(state["data"]) != 2:
                raise damaged("the clock of a Trainer", [state["offset"], state["data"]])
            ahead = counts_by_number(state, "ahead")
            # A checkpoint saved by MissedCheckpoints has an earlier global step.
            same_batches = state["batches"] == self._progress.total.processed
            stayed = bool(same_batches and self.global_step <= state["global_step"])
            self.steps = state["steps"]
            if stayed:
                self.global_step, self._ahead = state["global_step"], ahead
            else:
                self.steps += self._steps_since(state)
            # The saved offset belongs to epochs of the saved length.
            same_data = state["data"] == self.state_dict()["data"]
            self._offset = state["offset"] if same_data else self._plain_steps() - self.steps
            self._ended = state["ended"] if stayed and same_data else self._plain_epochs()
            self._set_length()
            return stayed

    def _steps_since(self, state: dict[str, Any]) -> int:
        """Return how many steps the Trainer has taken since a state was saved."""
        return self.global_step - int(state["global_step"])


def counts_by_number(state: dict[str, Any], name: str) -> dict[int, int]:
    """Return saved counts by the number of a scheduler.

    Raises:
        CheckpointError: If a count is damaged.
    """
    return {int(k): check_count(name, count) for k, count in state[name].items()}


@final
class MissedCheckpoints(TrainerCallback):
    """Calls callbacks that wait for a global step that a full step of several ticks has skipped.

    It may be a multiple of ``every_n_train_steps``, or a step at which a weight average is updated.
    The callback that waits for it is called once with that global step, after all other callbacks.
    """

    def __init__(self, clock: TrainerClock) -> None:
        self._clock = clock

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Call every callback with the last global step that it waits for and that was skipped."""
        before, self._clock.jumped_from = self._clock.jumped_from, None
        if before is None:
            return
        after = trainer.global_step
        for callback in list(trainer.callbacks):  # type: ignore[attr-defined]
            due = partial(self._due, trainer, callback)
            step = next(filter(due, range(after, before, -1)), after)
            if step == after:  # it waits for none, or was called already
                continue
            self._clock.set_global_step(step)
            try:
                callback.on_train_batch_end(trainer, *args, **kwargs)
            finally:
                self._clock.set_global_step(after)

    @staticmethod
    def _due(trainer: pl.Trainer, callback: Any, step: int) -> bool:
        """Whether a callback waits for a global step."""
        if isinstance(callback, package_of(trainer).callbacks.ModelCheckpoint):
            every = callback._every_n_train_steps
            return every > 0 and step % every == 0
        # Only callbacks that average weights have this method, in some versions of Lightning.
        should_update = getattr(callback, "should_update", None)
        return should_update is not None and bool(should_update(step_idx=step - 1))
