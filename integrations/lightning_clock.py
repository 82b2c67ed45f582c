"""Advances a Lightning Trainer's counters by predicted steps, in both ways of optimizing."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Literal, final, get_args

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
        unavailable: Why predicted steps cannot be counted in this Trainer; empty if they can.
    """

    _counter = "automatic_optimization.optim_progress.optimizer.step"
    _updates = 1
    """Increase of the Trainer's global step in one full step."""

    def __init__(self, trainer: Any, skip_data: SkipData, epochs: int | None) -> None:
        self._trainer = trainer
        # Epochs that callbacks have added for themselves, as weight averages do for batch norm.
        self._added_epochs = 0 if epochs in (None, -1) else trainer.max_epochs - epochs
        self._progress = trainer.fit_loop.epoch_loop.batch_progress
        self._epochs_done = trainer.fit_loop.epoch_progress
        self.steps = 0
        self.global_step = trainer.global_step
        self.jumped_from: int | None = None
        self._ahead: dict[int, int] = {}
        self._held: list[tuple[Any, int]] = []
        self._minimum: tuple[Any, Any] | None = None
        self._owed = 0
        self._learned: list[int] = []
        self._epoch = self._ended = int(self._epochs_done.current.processed)
        self._batches = self._begun()
        self._set_length()
        self._bounded = math.isfinite(self.length)
        self._chooses = skip_data == "auto"
        self.skip_data = self._choose() if self._chooses else skip_data
        self.unavailable = self._missing()

    def _begun(self) -> int:
        """Return how many batches of its epoch a Trainer that resumes has left behind."""
        if not self._trainer.fit_loop.restarting:
            return 0
        # A batch in which a checkpoint was saved is not processed, and is taken again.
        return int(self._progress.current.processed % self._trainer.num_training_batches)

    @property
    def _data(self) -> list[Any]:
        """Batches of this epoch as its loader counts them, and batches per update."""
        return [self._trainer.num_training_batches, self._trainer.accumulate_grad_batches]

    @property
    def _claimed(self) -> float:
        """Steps in an epoch as long as the loader says that this one is."""
        return _steps(*self._data)

    @property
    def _per_epoch(self) -> float:
        """Steps in an epoch like this one; the last one has shown it if its stream ended early."""
        if self._learned[:2] != self._data or self._batches >= self._learned[2]:
            return self._claimed
        return _steps(self._learned[2], self._trainer.accumulate_grad_batches)

    @property
    def _in_epoch(self) -> int:
        """Steps of this epoch that are behind."""
        batches, window = self._data
        if self._batches < batches:
            return self._batches // window
        return math.ceil(self._batches / window)

    @property
    def _epochs(self) -> float:
        limit = self._trainer.max_epochs
        return math.inf if limit in (None, -1) else limit - self._added_epochs

    def _set_length(self, least: int = 0) -> None:
        """Work out the run's length: what was taken, and epochs like this one from here on."""
        limit, self._by_steps = self._trainer.max_steps, math.inf
        if limit != -1:
            self._by_steps = self.steps + math.ceil((limit - self.global_step) / self._updates)
        left = self._epochs - self._epoch
        rest = left * self._per_epoch - self._in_epoch
        self._by_epochs = max(least, self.steps - self._owed + rest) if left > 0 else self.steps
        self.length = min(self._by_epochs, self._by_steps)

    def _choose(self) -> SkipData:
        limit, in_epochs = self._trainer.max_steps, self._epochs * self._per_epoch
        by_steps = limit != -1 and limit <= in_epochs * self._updates
        unknown, counts_epochs = math.isinf(self._per_epoch), any(self._schedulers("epoch"))
        if unknown or (by_steps and not counts_epochs):
            return "none"
        return self._cheapest()

    def _cheapest(self) -> SkipData:
        """Return how to drop batches; loading what is dropped can take longer than a full step."""
        loaders = tree_leaves(self._trainer.train_dataloader)
        return "tail" if all(map(_shuffles, loaders)) else "draw"

    def _missing(self) -> str:
        """Return why predicted steps cannot be counted in this Trainer; empty if they can."""
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
            return not self._bounded
        # The epochs may have batches left that were neither used nor dropped.
        return self._by_epochs < self._by_steps and self._owed > 0

    def stop(self) -> None:
        """End a run that is done, whatever its least numbers of epochs and steps.

        The plain run would have ended here at ``max_epochs``, which knows no exceptions.
        """
        loop = self._trainer.fit_loop
        self._minimum = self._minimum or (loop.min_epochs, loop.min_steps)
        loop.min_epochs = loop.epoch_loop.min_steps = None
        self._trainer.should_stop = True

    def release(self) -> None:
        """Leave the Trainer's settings as they were."""
        self._release_schedulers()
        if self._minimum is not None:
            loop = self._trainer.fit_loop
            loop.min_epochs, loop.epoch_loop.min_steps = self._minimum
            self._minimum = None

    def set_global_step(self, step: int) -> None:
        """Set the Trainer's global step."""
        progress = attrgetter(self._counter)(self._trainer.fit_loop.epoch_loop)
        more = step - int(progress.total.completed)
        for counts in (progress.total, progress.current):
            counts.ready += more
            counts.completed += more

    def begin(self, position: int) -> None:
        """Learn the run's length anew, with the first batch of the step at a position in hand."""
        epoch = int(self._epochs_done.current.processed)
        if epoch != self._epoch:
            self._epoch = epoch
            if self._chooses and self.skip_data != "none":
                self.skip_data = self._cheapest()  # the epoch may have another loader
        self._batches = self._progress.current.ready - 1
        self._set_length(least=position + 1)

    def open(self) -> None:
        """Keep the Trainer from stepping epoch schedulers where the plain run would not.

        A full step may be the last one of an epoch whose end predicted steps have passed already.
        """
        passes = self._owed or self._ended > self._epoch
        if self.unavailable or self.skip_data == "none" or not passes:
            return
        ended = self._plain_epochs(self._in_epoch + 1)
        for _, config in self._schedulers("epoch"):
            if ended // config.frequency == self._ended // config.frequency:
                self._held.append((config, config.frequency))
                config.frequency = sys.maxsize

    def _release_schedulers(self) -> set[int]:
        """Give epoch schedulers back to the Trainer; return the ``id`` of each it was kept from."""
        held, self._held = self._held, []
        for config, frequency in held:
            config.frequency = frequency
        return {id(config) for config, _ in held}

    def advance(self, ticks: int, steps: int, full_steps: int) -> None:
        """Advance the Trainer's counters after a full step, given the run's counts so far.

        Everything that the Trainer counted in this full step counts ``ticks`` times.
        """
        self.jumped_from = self.global_step if ticks > 1 else None
        self.global_step += ticks * (self._trainer.global_step - self.global_step)
        self.set_global_step(self.global_step)
        held = self._release_schedulers()
        own = self._ends_epoch
        self._step_schedulers(steps)
        self._owed += steps - self.steps - 1
        self._batches = self._progress.current.ready
        self.steps = steps
        if self._owed and self.skip_data != "none" and math.isfinite(self._per_epoch):
            self._skip_batches()
        self._step_epoch_schedulers(self._plain_epochs(self._in_epoch), own, held)

    @property
    def _ends_epoch(self) -> bool:
        """Whether the batch under way is the last one of the Trainer's epoch."""
        return bool(self._trainer.fit_loop.epoch_loop._num_ready_batches_reached())

    def _plain_epochs(self, in_epoch: int) -> int:
        """Return how many epochs the plain run has ended after so many steps of this one."""
        if self.skip_data == "none":
            return self._epoch + self._ends_epoch
        passed = int((in_epoch + self._owed) // self._claimed)
        return self._epoch + max(passed, self._ends_epoch)

    def end_epoch(self) -> None:
        """Learn how long a stream was, and count an epoch whose last batch was no full step's.

        Unless the Trainer knew the last batch, a window that it cuts off has no update.
        """
        batches = self._trainer.num_training_batches
        used = self._progress.current.ready
        if self._trainer.fit_loop._data_fetcher.done and used < batches < math.inf:
            window = 1 if self._ends_epoch else self._trainer.accumulate_grad_batches
            self._learned = [*self._data, used // window * window]
        after = self._epoch + 1
        held = self._release_schedulers()
        self._step_epoch_schedulers(after, self._ended < after, held)

    def _step_epoch_schedulers(self, ended: int, own: bool, held: set[int]) -> None:
        """Step schedulers that count epochs as often as the plain run has after ``ended`` epochs.

        ``own`` is whether the Trainer has ended an epoch, and stepped all but those it was
        ``held`` from.
        """
        before, self._ended = self._ended, max(self._ended, ended)
        for _, config in self._schedulers("epoch"):
            due = self._ended // config.frequency - before // config.frequency
            stepped = own and (self._trainer.current_epoch + 1) % config.frequency == 0
            self._step(config, due - (stepped and id(config) not in held))

    def _step(self, config: Any, count: int) -> None:
        for _ in range(count):
            self._trainer.lightning_module.lr_scheduler_step(config.scheduler, None)

    def _schedulers(self, interval: str) -> Iterator[tuple[int, Any]]:
        """Yield number and settings of the schedulers that count steps, or epochs."""
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            if config.interval == interval and not config.reduce_on_plateau:
                yield k, config

    def _step_schedulers(self, steps: int) -> None:
        """Step schedulers that count steps as often as the plain run does up to ``steps``."""
        start = self._in_epoch + self._owed
        batch = self._progress.current.ready
        for k, config in self._schedulers("step"):
            new = range(start + 1, start + 1 + steps - self.steps)
            plain = sum(self._plain_batch(step) % config.frequency == 0 for step in new)
            # It waits where the Trainer, which goes by its own batches, is ahead.
            more = plain - (batch % config.frequency == 0) - self._ahead.get(k, 0)
            self._step(config, more)
            self._ahead[k] = max(0, -more)

    def _plain_batch(self, step: int) -> int:
        """Return the number in its epoch of the last batch in a step after this epoch's start."""
        (batches, window), steps = self._data, self._per_epoch
        if math.isinf(batches):
            return step * window
        return min(((step - 1) % max(1, int(steps)) + 1) * window, int(batches))

    def _skip_batches(self) -> None:
        """Skip the batches of predicted steps, but no validation and no end of an epoch."""
        trainer, progress = self._trainer, self._progress
        at, window = progress.current.ready, trainer.accumulate_grad_batches
        count = min(self._owed, int(self._per_epoch) - 1 - self._in_epoch) * window  # keep the last
        every = trainer.val_check_batch
        if trainer.enable_validation and isinstance(every, int):
            over_epochs = trainer.check_val_every_n_epoch is None
            count = min(count, -(progress.total.ready if over_epochs else at) % every)
        count = max(0, count) // window * window
        fetcher = trainer.fit_loop._data_fetcher
        if self.skip_data == "draw":
            # If training_step takes an iterator, the fetcher returns the iterator, not batches.
            batches_left = getattr(fetcher, "iterator_wrapper", fetcher)
            drawn = 0
            while drawn < count and next(batches_left, None) is not None:
                drawn += 1
        else:
            fetcher.fetched += count
            fetcher.done = fetcher.length is not None and fetcher.fetched >= fetcher.length
            drawn = count
        for counts in (progress.total, progress.current):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + drawn)
        if drawn == count:  # else the stream is shorter than its length, as the Trainer will find
            progress.is_last_batch = fetcher.done
        self._owed -= drawn // window
        self._batches += drawn

    def state_dict(self) -> dict[str, Any]:
        """Return all counts as primitives."""
        return {
            "steps": self.steps,
            "global_step": self.global_step,
            "batches": self._progress.total.processed,
            "limits": [self._trainer.max_steps, self._trainer.max_epochs],
            "skip_data": self.skip_data,
            "owed": self._owed,
            "learned": self._learned,
            "ended": self._ended,
            "ahead": {str(k): count for k, count in self._ahead.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Load a saved state; return whether the Trainer's counters still are those of the state.

        If the Trainer has continued since, its counters win.
        """
        with reading("clock"):
            for name in ("steps", "global_step", "batches", "owed", "ended"):
                check_count(name, state[name])
            if len(state["learned"]) not in (0, 3):
                raise damaged("the length of an epoch", state["learned"])
            if state["skip_data"] not in get_args(SkipData):
                raise damaged("how batches are skipped", state["skip_data"])
            ahead = _counts_by_number(state, "ahead")
            # A checkpoint saved by MissedCheckpoints has an earlier global step.
            same_batches = state["batches"] == self._progress.total.processed
            stayed = bool(same_batches and self.global_step <= state["global_step"])
            self.steps = state["steps"] + (0 if stayed else self._steps_since(state))
            self._owed = state["owed"] if self.steps >= state["steps"] else 0
            self._learned = list(map(partial(check_count, "learned"), state["learned"]))
            if stayed:
                self.global_step, self._ahead = state["global_step"], ahead
            # The choice depends on the first epoch; it holds for a run that goes on as it was.
            same = state["limits"] == self.state_dict()["limits"]
            if self._chooses and same and "none" in (state["skip_data"], self.skip_data):
                self.skip_data = "none" if state["skip_data"] == "none" else self._cheapest()
            passed = 0 if self.skip_data == "none" else self._in_epoch + self._owed
            self._ended = state["ended"] if stayed else self._epoch + int(passed // self._claimed)
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
        self._by_module: dict[int, int] = {}
        self._added: dict[int, int] = {}
        super().__init__(trainer, skip_data, epochs)
        self._start = self.global_step
        self._origin = self._full_steps = 0
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

    def _schedulers(self, interval: str) -> Iterator[tuple[int, Any]]:
        return (pair for pair in super()._schedulers(interval) if pair[0] not in self._added)

    def _plain_epochs(self, in_epoch: int) -> int:
        # The module steps them at the ends of its own epochs, and cannot be kept from it.
        return super()._plain_epochs(in_epoch) if self._ends_epoch else self._ended

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


def _steps(batches: float, window: int) -> float:
    """Return the steps in so many batches, an integer unless they are infinite."""
    return math.ceil(batches / window) if math.isfinite(batches) else batches


def _counts_by_number(state: dict[str, Any], name: str) -> dict[int, int]:
    """Return saved counts by the number of a scheduler."""
    return {int(k): check_count(name, count) for k, count in state[name].items()}


def _shuffles(loader: Any) -> bool:
    """Return whether a data loader is known to begin every epoch with other samples."""
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:  # samples that are whole batches
        batches = getattr(loader, "sampler", None)
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
