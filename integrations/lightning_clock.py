"""Advances the counters of a Lightning Trainer by predicted steps."""

from __future__ import annotations

import math
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

    Args:
        trainer: The Trainer, at the start of training.
        skip_data: See :class:`HybridPredict`.
        epochs: ``max_epochs`` as the user set it; -1 or None if epochs do not bound the run. Other
            callbacks may change the Trainer's ``max_epochs`` later.

    Attributes:
        steps: Number of steps of the run, as counted by the Trainer.
        global_step: The Trainer's global step after the last full step.
    """

    _counter = "automatic_optimization.optim_progress.optimizer.step"
    _updates = 1
    """Increase of the Trainer's global step in one full step."""

    def __init__(self, trainer: pl.Trainer, skip_data: SkipData, epochs: int | None) -> None:
        self._trainer = trainer
        self._epochs = -1 if epochs is None else epochs
        self.skip_data = self._choose(skip_data)
        self.steps = 0
        self.global_step = self._start = trainer.global_step
        self._batches = trainer.fit_loop.epoch_loop.batch_progress
        # A batch in which a checkpoint was saved is taken again, and counted twice.
        self._repeated = self._under_way
        self._first_batch = self._used
        self._scheduler_steps: dict[int, int] = {}
        self._more_epochs: dict[int, int] = {}
        self._by_steps, self._by_epochs = self._ends()
        self.length = self._length()

    def _ends(self) -> tuple[int | float, int | float]:
        """Return the steps at which ``max_steps`` and ``max_epochs`` end the run."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        by_steps = by_epochs = math.inf
        if trainer.max_steps != -1:
            left = trainer.max_steps - self.global_step
            by_steps = self.steps + math.ceil(left / self._updates)
        batches, window = trainer.num_training_batches, trainer.accumulate_grad_batches
        if self._epochs != -1 and math.isfinite(batches):
            begun = self._batches.current.ready - self._repeated if loop.restarting else 0
            epochs_done: Any = loop.epoch_progress.current
            done = epochs_done.processed * int(batches) + begun % int(batches)
            epochs, rest = divmod(done + max(0, self._owed), int(batches))
            left = (max(self._epochs, 1) - epochs) * math.ceil(batches / window)
            by_epochs = self.steps + left - rest // window
        return by_steps, by_epochs

    def _length(self) -> int | float:
        """Return the run's length in steps, including steps before a resume; infinite if unknown.

        Raises:
            UnsupportedSetupError: If epochs matter and have different numbers of updates.
        """
        scheduler = package_of(self._trainer).callbacks.GradientAccumulationScheduler
        now = {self._trainer.accumulate_grad_batches}
        changing = any(
            isinstance(c, scheduler) and set(c.scheduling.values()) != now
            for c in self._trainer.callbacks  # type: ignore[attr-defined]
        )
        if changing and (math.isfinite(self._by_epochs) or self.skip_data != "none"):
            raise UnsupportedSetupError(
                "GradientAccumulationScheduler",
                "a run bounded by max_steps alone, with skip_data='none'",
                f"max_epochs={self._epochs}, skip_data={self.skip_data!r}",
                "Set Trainer(max_steps=..., max_epochs=-1) and HybridPredict(skip_data='none').",
            )
        return min(self._by_epochs, self._by_steps)

    @property
    def unavailable(self) -> str:
        """Reason why predicted steps cannot be counted in this Trainer; empty if they can."""
        paths = (
            f"epoch_loop.{self._counter}.total.completed",
            "epoch_loop.batch_progress.current.ready",
            "_data_fetcher.fetched",
        )
        for path in paths:
            try:
                attrgetter(path)(self._trainer.fit_loop)
            except AttributeError:
                return f"this version of Lightning has no fit_loop.{path}"
        if self.skip_data != "none" and math.isinf(self._trainer.num_training_batches):
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
        before = int(progress.total.completed)
        for counts in (progress.total, progress.current):
            counts.ready += step - before
            counts.completed += step - before

    def open(self) -> None:
        """Record the counters before a full step."""

    def check(self, full_steps: int) -> None:
        """Check that the last full step made the updates that the run's length assumes.

        Args:
            full_steps: Number of full steps so far.
        """

    def advance(self, ticks: int, steps: int, batch_idx: int) -> None:
        """Advance the Trainer's counters after a full step.

        Args:
            ticks: Ticks of the full step; everything that the Trainer counted in it counts this
                often.
            steps: Steps of the run so far, including these ticks.
            batch_idx: Index in the epoch of the full step's last batch.
        """
        self.global_step += ticks * (self._trainer.global_step - self.global_step)
        self.set_global_step(self.global_step)
        self._step_schedulers(steps, batch_idx)
        self.steps = steps
        if self.skip_data != "none":
            self._skip_batches()

    def end_epoch(self) -> None:
        """Step schedulers that count epochs as often as in the plain run.

        The Trainer steps them once per epoch. If epochs have few batches, this run has fewer
        epochs, because each has at least one full step.
        """
        batches, window = self._trainer.num_training_batches, self._trainer.accumulate_grad_batches
        if self.skip_data == "none" or math.isinf(batches):
            return
        epochs = self.steps // math.ceil(batches / window)
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            if config.interval != "epoch" or config.reduce_on_plateau:
                continue
            by_trainer = (self._trainer.current_epoch + 1) // config.frequency
            done = by_trainer + self._more_epochs.get(k, 0)
            due = self._step_scheduler(config, done, epochs // config.frequency)
            self._more_epochs[k] = due - by_trainer

    @property
    def missing_epochs(self) -> int:
        """Number of epochs of the plain run that this run does not have."""
        if self._epochs == -1 or self._by_epochs > self._by_steps or self.skip_data == "none":
            return 0
        return self._epochs - self._trainer.current_epoch

    def _choose(self, skip_data: SkipData) -> SkipData:
        if skip_data != "auto":
            return skip_data
        trainer, batches = self._trainer, self._trainer.num_training_batches
        per_epoch = batches / trainer.accumulate_grad_batches
        per_epoch = math.ceil(per_epoch) if math.isfinite(batches) else math.inf
        epochs = math.inf if self._epochs == -1 else self._epochs
        by_steps = trainer.max_steps != -1 and trainer.max_steps <= per_epoch * epochs
        counts_epochs = any(
            c.interval == "epoch" and not c.reduce_on_plateau for c in trainer.lr_scheduler_configs
        )
        return "none" if math.isinf(batches) or (by_steps and not counts_epochs) else "draw"

    def _step_schedulers(self, steps: int, batch_idx: int) -> None:
        trainer = self._trainer
        for k, config in enumerate(trainer.lr_scheduler_configs):
            if config.interval != "step" or config.reduce_on_plateau:
                continue
            by_trainer = int((batch_idx + 1) % config.frequency == 0)
            before = self._plain_scheduler_steps(self.steps, config.frequency)
            done = self._scheduler_steps.get(k, before) + by_trainer
            plain = self._plain_scheduler_steps(steps, config.frequency)
            self._scheduler_steps[k] = self._step_scheduler(config, done, plain)

    def _step_scheduler(self, config: Any, done: int, plain: int) -> int:
        """Step a scheduler until it has as many steps as in the plain run; return their number."""
        for _ in range(plain - done):
            self._trainer.lightning_module.lr_scheduler_step(config.scheduler, None)
        return max(done, plain)

    def _plain_scheduler_steps(self, steps: int, frequency: int) -> int:
        """Number of scheduler steps in the plain run after ``steps`` steps."""
        window, batches = self._trainer.accumulate_grad_batches, self._trainer.num_training_batches
        stride = frequency // math.gcd(frequency, window)
        if math.isinf(batches):
            return steps // stride
        whole, partial = divmod(int(batches), window)
        epochs, rest = divmod(steps, whole + bool(partial))
        per_epoch = whole // stride + (partial > 0 and batches % frequency == 0)
        return epochs * per_epoch + rest // stride

    @property
    def _owed(self) -> int:
        """Number of batches that the plain run has used more than this run.

        Within an epoch only differences matter; batches that do not fit in an epoch are skipped in
        the next.
        """
        return self._first_batch + self._plain_batches() - self._used

    @property
    def _under_way(self) -> int:
        """1 while a batch is being processed, else 0."""
        current: Any = self._batches.current  # Lightning's type leaves out what it counts
        return int(current.ready - current.processed)

    @property
    def _used(self) -> int:
        """Number of batches that the Trainer has taken, including the one under way."""
        return int(self._batches.total.ready - self._repeated)

    def _plain_batches(self) -> int:
        """Number of batches that the plain run has used after as many steps."""
        window, batches = self._trainer.accumulate_grad_batches, self._trainer.num_training_batches
        epochs, rest = divmod(self.steps, math.ceil(batches / window))
        return epochs * int(batches) + min(rest * window, int(batches))

    def _skip_batches(self) -> None:
        """Skip the batches of predicted steps, but no validation and no end of an epoch."""
        trainer, fit_loop = self._trainer, self._trainer.fit_loop
        window, progress = trainer.accumulate_grad_batches, fit_loop.epoch_loop.batch_progress
        at = progress.current.ready
        count = min(self._owed, int(trainer.num_training_batches) - 1 - at)
        every = trainer.val_check_batch
        if trainer.enable_validation and isinstance(every, int):
            over_epochs = trainer.check_val_every_n_epoch is None
            count = min(count, -(progress.total.ready if over_epochs else at) % every)
        count = max(0, count) // window * window
        fetcher = fit_loop._data_fetcher
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

    def _settings(self) -> list[int | float]:
        """Settings that determine the length of a run."""
        trainer = self._trainer
        data = [trainer.num_training_batches, trainer.accumulate_grad_batches]
        return [*data, trainer.max_steps, self._epochs]

    def state_dict(self) -> dict[str, Any]:
        """Return the start of the run and all counts, as primitives."""
        return {
            "steps": self.steps,
            "length": self.length,
            "settings": self._settings(),
            "start": self._start,
            "global_step": self.global_step,
            "first_batch": self._first_batch,
            "batches": self._used - self._under_way,
            "scheduler_steps": {str(k): v for k, v in self._scheduler_steps.items()},
            "more_epochs": {str(k): v for k, v in self._more_epochs.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Load a state of :meth:`state_dict`; if the Trainer has continued since, its counters win.

        Returns:
            Whether the Trainer's counters are those of the state.

        Raises:
            CheckpointError: If an entry is missing or damaged.
        """
        with reading("clock"):
            _check(state)
            return self._load(state)

    def _load(self, state: dict[str, Any]) -> bool:
        before, self._start = state["global_step"], state["start"]
        # A checkpoint saved by MissedCheckpoints has an earlier global step.
        stayed = state["batches"] == self._used and self.global_step <= before
        self.steps = state["steps"]
        if stayed:
            self.global_step = before
            self._scheduler_steps = {int(k): n for k, n in state["scheduler_steps"].items()}
            self._more_epochs = {int(k): n for k, n in state["more_epochs"].items()}
        else:
            self.steps += self._steps_of(self.global_step - before, state)
        settings = self._settings()
        if state["settings"][:2] == settings[:2]:
            self._first_batch = state["first_batch"]
        elif math.isfinite(settings[0]):  # the saved count belongs to epochs of another length
            self._first_batch -= self._plain_batches()
        self._by_steps, self._by_epochs = self._ends()
        self.length = state["length"] if state["settings"] == settings else self._length()
        return stayed

    def _steps_of(self, updates: int, state: dict[str, Any]) -> int:
        """Convert a number of the Trainer's updates to steps of a run with this state."""
        return updates


def _check(state: dict[str, Any]) -> None:
    """Check the counts of a saved clock."""
    for name in ("steps", "start", "global_step", "batches"):
        check_count(name, state[name])
    for name in ("scheduler_steps", "more_epochs"):
        for count in state[name].values():
            check_count(name, count)
    first, settings = state["first_batch"], state["settings"]
    numbers = all(isinstance(x, (int, float)) for x in settings)
    if not isinstance(first, int) or len(settings) != 4 or not numbers:
        raise damaged("the clock of a Trainer", [first, settings])
    if state["length"] != math.inf:
        check_count("length", state["length"], 1)


@final
class MissedCheckpoints(TrainerCallback):
    """Calls callbacks that wait for a global step which a full step of several ticks skipped.

    A full step of several ticks can skip a multiple of ``every_n_train_steps``, or a step at which
    a weight average is updated. The callback that waits for it is called once with that global
    step. This callback runs after all others.

    Args:
        clock: The Trainer's clock.
    """

    def __init__(self, clock: TrainerClock) -> None:
        self._clock = clock
        self.jumped_from: int | None = None

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Call every callback with the last global step that it waits for and that was skipped."""
        before, self.jumped_from = self.jumped_from, None
        if before is None:
            return
        after = trainer.global_step
        for callback in list(trainer.callbacks):  # type: ignore[attr-defined]
            step = self._awaited(trainer, callback, before, after)
            if step is None:
                continue
            self._clock.set_global_step(step)
            try:
                callback.on_train_batch_end(trainer, *args, **kwargs)
            finally:
                self._clock.set_global_step(after)

    @staticmethod
    def _awaited(trainer: pl.Trainer, callback: Any, before: int, after: int) -> int | None:
        """Return the last global step between two that a callback waits for, or None."""
        if isinstance(callback, package_of(trainer).callbacks.ModelCheckpoint):
            every = getattr(callback, "_every_n_train_steps", 0)
            multiple = after // every * every if every > 0 else 0
            return multiple if before < multiple < after else None
        # Only callbacks that average weights have this method, in some versions of Lightning.
        due = getattr(callback, "should_update", None)
        if due is None or due(step_idx=after - 1):
            return None
        steps = range(after - 1, before, -1)
        return next((step for step in steps if due(step_idx=step - 1)), None)
