"""Counts the steps of a Lightning Trainer's run, and drops the batches of predicted ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Literal, final

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.saved import reading

SkipData = Literal["auto", "draw", "tail", "none"]

_AUTOMATIC = "automatic_optimization.optim_progress.optimizer.step"
_MANUAL = "manual_optimization.optim_step_progress"
"""Where Lightning counts updates."""

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@final
@dataclass
class Counts:
    """What is counted of a run, and saved. The *plain run* is the same run without the plug-in.

    Attributes:
        steps: Steps that the run has taken.
        global_step: The Trainer's global step after them.
        batches: Batches that the Trainer has counted by then, over all epochs.
        owed: Predicted steps whose batches are not dropped yet.
        epochs: Epochs that the plain run has ended.
        said: Batches in the last epoch that has ended, as its loader said; 0 if it did not.
        used: Batches that this epoch had.
        origin: Steps before those in which the module's own schedulers were watched.
        full_steps: Full steps in which they were.
        module: Steps of each of these by the module, and by the clock: -1 if the module has stepped
            it at the ends of epochs alone.
    """

    steps: int
    global_step: int
    batches: int
    owed: int
    epochs: int
    said: int
    used: int
    origin: int
    full_steps: int
    module: list[list[int]]


@final
class TrainerClock:
    """Lets a Trainer count predicted steps: global step, schedulers and, by epochs, batches.

    In every epoch the plain run uses all batches that the loader has then. A predicted step that
    stands owes the batches of one update; they are dropped in this epoch as far as it has any, and
    in the next one otherwise. The last full step of an epoch stays, as user code may wait for it.

    With manual optimization one ``training_step`` is one full step. The global step counts the
    updates of all optimizers, so a full step of n updates and k ticks advances it by n k. A
    scheduler that the module steps within epochs is stepped as often per step as the module does
    per full step; one that it steps at the ends of epochs alone is left to it.

    ``epochs`` is ``max_epochs`` as the user set it; callbacks may add epochs for themselves, as
    weight averages do for batch norm.

    Attributes:
        counts: What is counted, and saved.
        drops: Whether batches are dropped.
        jumped_from: The global step before the last full step, if this had several ticks.
    """

    def __init__(self, trainer: Any, skip_data: SkipData, epochs: int | None) -> None:
        self._trainer = trainer
        self._manual = not trainer.lightning_module.automatic_optimization
        # This assumes one step of each optimizer per training step; `advance` verifies it.
        self._updates = len(trainer.optimizers) if self._manual else 1
        loop = trainer.fit_loop.epoch_loop
        try:
            self._updated = attrgetter(_MANUAL if self._manual else _AUTOMATIC)(loop)
        except AttributeError as error:
            remedy = "Install another version of Lightning. Or remove HybridPredict."
            expected = "a Trainer that counts its updates where Lightning 2.6 does"
            raise UnsupportedSetupError("Trainer", expected, str(error), remedy) from error
        self._progress = loop.batch_progress
        self._added_epochs = 0 if epochs in (None, -1) else trainer.max_epochs - epochs
        by_epochs = math.isfinite(self._epochs_left) or any(self._schedulers("epoch"))
        self._skip_data = skip_data
        self.drops = by_epochs if skip_data == "auto" else skip_data != "none"
        self.counts = Counts(0, trainer.global_step, 0, 0, self._epoch, 0, 0, 0, 0, [])
        self.jumped_from: int | None = None
        self._held: list[tuple[Any, int]] = []
        self._positions: dict[int, int] = {}
        self._minimum: tuple[Any, Any] | None = None
        self._resume_epoch()
        self._bounded = math.isfinite(self._ahead)

    def _resume_epoch(self) -> None:
        """Look at the epoch in which a Trainer begins or resumes."""
        self._look_at_epoch(0)
        if self._trainer.fit_loop.restarting:
            # A batch in which a checkpoint was saved is not processed, and is taken again.
            self._look_at_epoch(int(self._progress.current.processed % self._batches))

    def _look_at_epoch(self, behind: int) -> None:
        """Take how many batches the epoch has, with one in hand after those that are behind.

        A stream may have fewer than it says, as in the last epoch.
        """
        said = self._trainer.num_training_batches
        fewer = self.counts.said == _finite(said) and behind < self.counts.used
        self._batches = self.counts.used if fewer else said
        self._behind = behind

    @property
    def _epoch(self) -> int:
        """Number of epochs that the Trainer has ended."""
        return int(self._trainer.fit_loop.epoch_progress.current.processed)

    @property
    def _epochs_left(self) -> float:
        limit = self._trainer.max_epochs
        return math.inf if limit in (None, -1) else limit - self._added_epochs - self._epoch

    def _steps(self, batches: float) -> float:
        """Return the steps in an epoch of so many batches."""
        return _ceil(batches / self._trainer.accumulate_grad_batches)

    @property
    def _in_epoch(self) -> int:
        """Steps of this epoch that are behind."""
        if self._behind >= self._batches:
            return int(self._steps(self._behind))
        return int(self._behind // self._trainer.accumulate_grad_batches)

    @property
    def _rest(self) -> float:
        """Steps of this epoch that are ahead, owed ones included."""
        return self._steps(self._batches) - self._in_epoch

    @property
    def _by_epochs(self) -> float:
        """Steps that the plain run has ahead by its epochs, if later ones are as long as this."""
        later = self._epochs_left - 1
        if later < 0:
            return 0
        return self._rest - self.counts.owed + (later and later * self._steps(self._batches))

    @property
    def _by_steps(self) -> float:
        """Steps that the plain run has ahead by ``max_steps``."""
        limit = self._trainer.max_steps
        return _ceil((math.inf if limit == -1 else limit - self.counts.global_step) / self._updates)

    @property
    def _ahead(self) -> float:
        return max(0, min(self._by_epochs, self._by_steps))

    @property
    def length(self) -> int | None:
        """Steps of the run, those before a resume included; None if the Trainer does not know."""
        known = self._bounded and math.isfinite(self._ahead)
        return self.counts.steps + int(self._ahead) if known else None

    def start(self, done: bool) -> None:
        """Give the Trainer the counts of the run that it begins or resumes.

        If a checkpoint was saved right before a validation, Lightning leaves that out.
        """
        self.set_global_step(self.counts.global_step)
        if self._until_validation(validated=False) == 0 < min(self._behind, self.counts.owed):
            before = self._behind
            self.drop(validated=True)
            # Lightning will count all batches that are behind as fetched.
            self._trainer.fit_loop._data_fetcher.fetched -= self._behind - before
        over = self._bounded and self._by_epochs <= 0 < self._epochs_left
        if over or self._outlasts(done):
            self._stop()

    def _outlasts(self, done: bool) -> bool:
        """Return whether the Trainer would go on although the plain run has ended."""
        if not self._bounded:
            return done
        # In the last epoch batches are dropped to its end. Later ones may be as long as they say.
        last = self._epochs_left == 1
        shorter = self._batches < self._trainer.num_training_batches
        if (self.drops and last) or (shorter and not last):
            return False
        return self._by_epochs <= 0 < min(self.counts.owed, self._by_steps)

    def _stop(self) -> None:
        """End the Trainer's run, whatever its least numbers of epochs and steps.

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
        more = step - int(self._updated.total.completed)
        for progress in (self._updated.total, self._updated.current):
            progress.ready += more
            progress.completed += more

    def begin(self) -> int | None:
        """Return the length anew, with the first batch of a full step in hand."""
        self._look_at_epoch(self._progress.current.ready - 1)
        self.counts.global_step = self._trainer.global_step
        least = self.counts.steps + (self._epochs_left > 0)  # else a callback has added the epoch
        return None if self.length is None else max(self.length, least)

    def hold(self) -> None:
        """Keep the Trainer from stepping schedulers until `advance` steps them.

        It would go by its own batches and epochs, not by those of the plain run.
        """
        self._positions = dict(self._of_module())
        for interval in () if self._manual else ("step", "epoch"):
            for config in self._schedulers(interval):
                self._held.append((config, config.frequency))
                config.frequency = sys.maxsize

    def _release_schedulers(self) -> list[tuple[Any, int]]:
        held, self._held = self._held, []
        for config, frequency in held:
            config.frequency = frequency
        return held

    def advance(self, ticks: int, done: bool) -> None:
        """Advance the Trainer's counters after a full step, in which all counts ``ticks`` times.

        ``done`` is whether the engine has taken its last step.
        """
        counts = self.counts
        before = counts.global_step
        updates = self._trainer.global_step - before
        if self._manual:
            self._check(updates)
        counts.global_step += ticks * updates
        self.set_global_step(counts.global_step)
        self.jumped_from = before if ticks > 1 else None
        start = self._in_epoch + counts.owed
        last_batches = [self._plain_batch(start + k) for k in range(ticks)]
        counts.steps += ticks
        counts.owed += ticks - 1
        self._behind = self._progress.current.ready
        if self._manual:
            self._follow_module()
        self.drop()
        ended = int(self._ends_epoch)
        if self.drops:
            steps = self._steps(self._trainer.num_training_batches)
            ended = max(ended, int((self._in_epoch + counts.owed) // steps))
        self._step_schedulers(last_batches, self._epoch + ended)
        if self._outlasts(done):
            self._stop()

    def _check(self, updates: int) -> None:
        """Refuse a full step by manual optimization whose updates do not fit the run's length.

        The first full step has to update; later ones may skip a batch.
        """
        by_steps = self._by_steps <= self._by_epochs
        idle = updates == self.counts.full_steps == 0
        if not idle and (not by_steps or updates in (0, self._updates)):
            return
        expected = f"{self._updates if by_steps else 'at least 1'} optimizer steps in each"
        remedy = "Set max_epochs, not max_steps."
        if not updates:
            remedy = (
                "Step the optimizers in every training_step, or let the Trainer accumulate "
                "gradients with automatic optimization."
            )
        remedy += " Or remove HybridPredict."
        raise UnsupportedSetupError("training_step", expected, updates, remedy)

    def _plain_batch(self, step: int) -> int:
        """Return the number in its epoch of the last batch in the plain run's step, from 0."""
        if math.isfinite(self._batches):
            step %= int(self._steps(self._batches))
        return int(min((step + 1) * self._trainer.accumulate_grad_batches, self._batches))

    def drop(self, *, validated: bool = False) -> None:
        """Drop the batches that are owed, but no validation and no end of an epoch.

        A full step has to end where a validation begins; ``validated`` is whether one has just
        been. If the rest of the run is owed, the last epoch ends after it.
        """
        owed = self.counts.owed
        window = self._trainer.accumulate_grad_batches
        if not self.drops or not owed:
            return
        until = self._until_validation(validated)
        if self._epochs_left == 1 and owed >= self._rest:
            left = self._batches - self._behind
            count = int(left if validated else min(left, until))
        else:
            most = min(owed, self._rest - 1) * window
            count = int(max(0, min(most, until - window if validated else until)))
            count -= count % window
        fetcher = self._trainer.fit_loop._data_fetcher
        dropped = self._skip(fetcher, count)
        for progress in (self._progress.total, self._progress.current):
            for name in ("ready", "started", "processed", "completed"):
                setattr(progress, name, getattr(progress, name) + dropped)
        before = self._in_epoch
        self._behind += dropped
        # The Trainer finds out itself that a stream has fewer batches than it says. It looks ahead
        # in a stream without a length.
        if dropped == count or fetcher.length is None:
            self._progress.is_last_batch = fetcher.done
            self._batches = self._behind if fetcher.done else self._batches
        self.counts.owed -= self._in_epoch - before

    def _skip(self, fetcher: Any, count: int) -> int:
        """Skip batches of the epoch, and return how many it had.

        To load what is dropped can take longer than a full step, so of data that are shuffled the
        last ones are left unread.
        """
        loaders = tree_leaves(self._trainer.train_dataloader)
        shuffled = self._skip_data == "auto" and all(map(_shuffles, loaders))
        whole = fetcher.length is not None and self._batches == self._trainer.num_training_batches
        if whole and (shuffled or self._skip_data == "tail"):
            fetcher.fetched += count
            fetcher.done = fetcher.fetched >= fetcher.length
            return count
        # If training_step takes an iterator, the fetcher returns the iterator, not batches.
        batches = getattr(fetcher, "iterator_wrapper", fetcher)
        dropped = 0
        while dropped < count and next(batches, None) is not None:
            dropped += 1
        return dropped

    def _until_validation(self, validated: bool) -> float:
        """Return the number of batches up to the next validation, which may come right now."""
        trainer = self._trainer
        every = trainer.val_check_batch
        loop = trainer.fit_loop.epoch_loop
        if not (isinstance(every, int) and loop._should_check_val_epoch()):
            return math.inf
        over_epochs = trainer.check_val_every_n_epoch is None
        until = -(self._progress.total.ready if over_epochs else self._behind) % every
        return every if validated and not until else until

    @property
    def _ends_epoch(self) -> bool:
        """Whether the Trainer takes the batch under way for the last one of its epoch."""
        return bool(self._trainer.fit_loop.epoch_loop._num_ready_batches_reached())

    def _schedulers(self, interval: str) -> Iterator[Any]:
        """Yield the settings of the schedulers that count steps, or epochs."""
        for config in self._trainer.lr_scheduler_configs:
            if config.interval == interval and not config.reduce_on_plateau:
                yield config

    def _step_schedulers(self, last_batches: list[int], epochs: int) -> None:
        """Step schedulers as the plain run does in steps with these last batches, and epochs."""
        before, self.counts.epochs = self.counts.epochs, max(self.counts.epochs, epochs)
        for config, frequency in self._release_schedulers():
            if config.interval == "step":
                due = sum(batch % frequency == 0 for batch in last_batches)
            else:
                due = self.counts.epochs // frequency - before // frequency
            for _ in range(due):
                self._trainer.lightning_module.lr_scheduler_step(config.scheduler, None)

    def end_epoch(self) -> None:
        """Learn how many batches the epoch had, and count it.

        If the module has ended it, Lightning steps schedulers for the batch that is left out.
        """
        used = self._progress.current.ready
        if not self._ends_epoch:
            self._release_schedulers()
            used -= used % self._trainer.accumulate_grad_batches  # the rest was not used
        self._step_schedulers([used], self._epoch)
        if self._trainer.fit_loop._data_fetcher.done:
            self.counts.said = _finite(self._trainer.num_training_batches)
            self.counts.used = used

    def _of_module(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each scheduler that the module may step, and its steps so far."""
        for k, config in enumerate(self._trainer.lr_scheduler_configs):
            if self._manual and not isinstance(config.scheduler, ReduceLROnPlateau):
                yield k, _position(config.scheduler)

    def _follow_module(self) -> None:
        """Step the schedulers that the module steps within epochs in predicted steps too."""
        counts = self.counts
        configs = self._trainer.lr_scheduler_configs
        counts.full_steps += 1
        counts.module += [[0, -1] for _ in configs[len(counts.module) :]]
        for k, position in self._of_module():
            own, added = counts.module[k]
            own += position - self._positions[k]
            if position > self._positions[k] and not self._trainer.is_last_batch:
                added = max(added, 0)
            if added >= 0:
                # The module's number of steps per full step, times the run's steps.
                due = own * (counts.steps - counts.origin) // counts.full_steps
                for _ in range(due - own - added):
                    configs[k].scheduler.step()
                added = max(added, due - own)
            counts.module[k] = [own, added]

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as primitives."""
        return {**asdict(self.counts), "batches": self._progress.total.processed}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Load saved counts; return whether the Trainer is where it was when they were saved.

        If it has gone on since, its own counters win.
        """
        with reading("clock"):
            module = [[int(own), int(added)] for own, added in state["module"]]
            rest = {name: int(count) for name, count in state.items() if name != "module"}
            saved = Counts(**rest, module=module)
        since = self._trainer.global_step - saved.global_step
        batches = self._progress.total.processed - saved.batches
        # A checkpoint saved by MissedCheckpoints has an earlier global step.
        stayed = bool(batches == 0 and since <= 0)
        if not stayed:
            saved.steps += max(0, batches if self._manual else since)
            saved.global_step = self._trainer.global_step
            saved.epochs = self._epoch
            saved.origin = saved.steps
            saved.full_steps = 0
            saved.module = []
        self.counts = saved
        self._resume_epoch()
        return stayed


def _ceil(number: float) -> float:
    """Return a number rounded up to an integer, unless it is infinite."""
    return math.ceil(number) if math.isfinite(number) else number


def _finite(batches: float) -> int:
    """Return a number of batches, or 0 if nobody knows it."""
    return int(batches) if math.isfinite(batches) else 0


def _shuffles(loader: Any) -> bool:
    """Return whether a data loader is known to begin every epoch with other samples."""
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:  # samples that are whole batches
        batches = getattr(loader, "sampler", None)
    sampler = batches.sampler if type(batches) is BatchSampler else None
    return isinstance(sampler, _RANDOM) or bool(getattr(sampler, "shuffle", False))


def _position(scheduler: Any) -> int:
    """Return the number of steps of a scheduler; a chained one has them in its parts."""
    if isinstance(scheduler, ChainedScheduler):
        return _position(scheduler._schedulers[0])
    return int(scheduler.last_epoch)
