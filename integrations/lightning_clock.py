"""Advances a Lightning Trainer's counters by predicted steps, in both ways of optimizing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Literal, final

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.saved import check_count, damaged, reading

SkipData = Literal["auto", "draw", "tail", "none"]

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class TrainerClock:
    """Advances the Trainer's global step and schedulers, and where epochs count also the batches.

    The *plain run* is the same run without the plug-in. ``epochs`` is ``max_epochs`` as the user
    set it, because other callbacks may change the Trainer's later.

    Attributes:
        steps: Number of steps of the run, as counted by the Trainer.
        global_step: The Trainer's global step after the last full step.
        length: The run's length in steps, including steps before a resume; infinite if unknown.
        jumped_from: The global step before the last full step, if this had several ticks.
    """

    _counter = "automatic_optimization.optim_progress.optimizer.step"
    _updates = 1
    """Increase of the Trainer's global step in one full step."""

    def __init__(self, trainer: Any, skip_data: SkipData, epochs: int | None) -> None:
        self._trainer = trainer
        self._epochs = math.inf if epochs in (None, -1) else epochs
        self._progress = trainer.fit_loop.epoch_loop.batch_progress
        self._epochs_done = trainer.fit_loop.epoch_progress
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
        epochs, rest = divmod(self._batches, int(self._trainer.num_training_batches))
        return epochs * int(self._per_epoch) + rest // self._trainer.accumulate_grad_batches

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
        if unknown or (by_steps and not counts_epochs):
            return "none"
        # Loading what is dropped can take longer than a full step.
        loaders = tree_leaves(self._trainer.train_dataloader)
        return "tail" if all(map(_shuffles, loaders)) else "draw"

    def _refuse_changing_windows(self) -> None:
        """Refuse epochs with different numbers of updates where epochs matter."""
        scheduler = package_of(self._trainer).callbacks.GradientAccumulationScheduler
        now = {self._trainer.accumulate_grad_batches}
        changing = any(
            isinstance(each, scheduler) and set(each.scheduling.values()) != now
            for each in self._trainer.callbacks
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
        """Advance the Trainer's counters after a full step, given the run's counts so far.

        Everything that the Trainer counted in this full step counts ``ticks`` times.
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
        """Batches that the plain run has used more than this run, some of an earlier epoch."""
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
        """Load a saved state; return whether the Trainer's counters still are those of the state.

        If the Trainer has continued since, its counters win.
        """
        with reading("clock"):
            for name in ("steps", "global_step", "batches", "ended"):
                check_count(name, state[name])
            if not isinstance(state["offset"], int) or len(state["data"]) != 2:
                raise damaged("the clock of a Trainer", [state["offset"], state["data"]])
            ahead = _counts_by_number(state, "ahead")
            # A checkpoint saved by MissedCheckpoints has an earlier global step.
            same_batches = state["batches"] == self._progress.total.processed
            stayed = bool(same_batches and self.global_step <= state["global_step"])
            self.steps = state["steps"] + (0 if stayed else self._steps_since(state))
            if stayed:
                self.global_step, self._ahead = state["global_step"], ahead
            # The saved offset belongs to epochs of the saved length.
            same_data = state["data"] == self.state_dict()["data"]
            self._offset = state["offset"] if same_data else self._plain_steps() - self.steps
            self._ended = state["ended"] if stayed and same_data else self._plain_epochs()
            self._set_length()
            return stayed

    def _steps_since(self, state: dict[str, Any]) -> int:
        """Return how many steps the Trainer has taken since a state was saved."""
        return self.global_step - int(state["global_step"])


@final
class ManualClock(TrainerClock):
    """The Trainer's clock under manual optimization: one ``training_step`` is one full step.

    The Trainer's global step counts the updates of all optimizers, so a full step of n updates and
    k ticks advances it by n k. A scheduler that the module steps within epochs is stepped as often
    per step as the module does per full step. A scheduler that it steps only at the end of epochs
    is not changed, because epochs are shortened already.
    """

    _counter = "manual_optimization.optim_step_progress"

    def __init__(self, trainer: Any, skip_data: SkipData, epochs: int | None) -> None:
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
        """Check the updates of a full step, and advance the Trainer's counters.

        The first full step has to update; later ones may skip a batch.
        """
        updates = self._trainer.global_step - self.global_step
        by_steps = self._by_steps <= self._by_epochs
        idle = updates == 0 and full_steps == 1
        if idle or (by_steps and updates not in (0, self._updates)):
            expected = f"{self._updates if by_steps else 'at least 1'} optimizer steps in each"
            remedy = (
                "Set max_epochs, not max_steps." if updates else "Step the optimizers in every "
                "training_step, or let the Trainer accumulate gradients with automatic "
                "optimization."
            )  # fmt: skip
            remedy += " Or remove HybridPredict."
            raise UnsupportedSetupError("training_step", expected, updates, remedy)
        super().advance(ticks, steps, full_steps)

    def _all_positions(self) -> dict[int, int]:
        """Return the number of steps of each scheduler that counts them."""
        return {
            k: _position(config.scheduler)
            for k, config in enumerate(self._trainer.lr_scheduler_configs)
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
            while by_module + self._added[k] < due:
                self._trainer.lr_scheduler_configs[k].scheduler.step()
                self._added[k] += 1

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
        """Load a saved state as the base class does."""
        with reading("clock"):
            self._start = check_count("start", state["start"])
            stayed = super().load_state_dict(state)
            self._origin = check_count("origin", state["origin"]) if stayed else self.steps
            if stayed:
                self._full_steps = check_count("full_steps", state["full_steps"])
                self._by_module = _counts_by_number(state, "by_module")
                self._added = _counts_by_number(state, "added")
            return stayed

    def _steps_since(self, state: dict[str, Any]) -> int:
        updates = int(state["global_step"]) - self._start
        per_step = updates / int(state["steps"]) if updates else self._updates
        return round(super()._steps_since(state) / per_step)


def _counts_by_number(state: dict[str, Any], name: str) -> dict[int, int]:
    """Return saved counts by the number of a scheduler."""
    return {int(k): check_count(name, count) for k, count in state[name].items()}


def _shuffles(loader: Any) -> bool:
    """Return whether a data loader is known to begin every epoch with other samples."""
    batches = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
    if type(batches) is not BatchSampler:
        return False
    sampler = batches.sampler
    return isinstance(sampler, _RANDOM) or (
        isinstance(sampler, DistributedSampler) and sampler.shuffle
    )


def _position(scheduler: Any) -> int:
    """Return the number of steps of a scheduler; a chained one has them in its parts."""
    if isinstance(scheduler, ChainedScheduler):
        return _position(scheduler._schedulers[0])
    return int(scheduler.last_epoch)
