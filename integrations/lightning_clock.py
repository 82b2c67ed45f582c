"""Counts the steps of a Lightning Trainer's run, and drops the batches of predicted ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_leaves
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from hybrid_predict.errors import UnsupportedSetupError, reading

SkipData = Literal["auto", "draw", "tail", "none"]

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_NOT_FOLLOWED = (ChainedScheduler, ReduceLROnPlateau)  # without a count of steps, or by a metric


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
        stepped: Numbers of the schedulers that the module itself has stepped in the last full step.
    """

    steps: int
    global_step: int
    batches: int
    owed: int
    epochs: int
    stepped: list[int]


@final
class TrainerClock:
    """Lets a Trainer count predicted steps: global step, schedulers and, by epochs, batches.

    In every epoch the plain run uses all batches that the loader has then. A predicted step that
    stands owes the batches of one update; they are dropped in this epoch as far as it has any, and
    in the next one otherwise. The last full step of an epoch stays, as user code may wait for it.

    With manual optimization the global step counts the updates of all optimizers, so a full step of
    n updates and k ticks advances it by n k. A scheduler that the module steps in
    ``training_step``, in one full step after another, is stepped in predicted steps too. One that
    it steps now and then, a ``ChainedScheduler`` and a ``ReduceLROnPlateau`` are left to it.

    ``epochs`` is ``max_epochs`` as the user set it; weight averages may add one for batch norm.

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
        if self._manual:
            self._updated = loop.manual_optimization.optim_step_progress
        else:
            self._updated = loop.automatic_optimization.optim_progress.optimizer.step
        self._progress = loop.batch_progress
        self._added_epochs = 0 if epochs in (None, -1) else trainer.max_epochs - epochs
        by_epoch = any(
            config.interval == "epoch" and not config.reduce_on_plateau
            for config in trainer.lr_scheduler_configs
        )
        self._skip_data = skip_data
        self.drops = skip_data != "none"
        if skip_data == "auto":
            self.drops = by_epoch or math.isfinite(self._epochs_left)
        self.counts = Counts(0, trainer.global_step, 0, 0, self._epoch, [])
        self.jumped_from: int | None = None
        self._held: list[tuple[Any, int]] = []
        self._of_module: list[tuple[Any, int]] = []
        self._resume_epoch()
        self._bounded = math.isfinite(self._ahead)

    def _resume_epoch(self) -> None:
        self._look_at_epoch(0)
        if self._trainer.fit_loop.restarting:
            # A batch in which a checkpoint was saved is not processed, and is taken again.
            self._look_at_epoch(int(self._progress.current.processed % self._batches))

    def _look_at_epoch(self, behind: int) -> None:
        self._batches = self._trainer.num_training_batches
        self._behind = behind  # without the one in hand

    @property
    def _epoch(self) -> int:
        return int(self._trainer.fit_loop.epoch_progress.current.processed)

    @property
    def _epochs_left(self) -> float:
        limit = self._trainer.max_epochs
        return math.inf if limit in (None, -1) else limit - self._added_epochs - self._epoch

    def _steps(self, batches: float) -> float:
        return _ceil(batches / self._trainer.accumulate_grad_batches)

    @property
    def _in_epoch(self) -> int:
        if self._behind >= self._batches:
            return int(self._steps(self._behind))
        return int(self._behind // self._trainer.accumulate_grad_batches)

    @property
    def _rest(self) -> float:
        return self._steps(self._batches) - self._in_epoch  # owed ones included

    @property
    def _by_epochs(self) -> float:
        later = self._epochs_left - 1  # taken for as long as this one
        if later < 0:
            return 0
        return self._rest - self.counts.owed + (later and later * self._steps(self._batches))

    @property
    def _by_steps(self) -> float:
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
        """Give the Trainer the counts of the run that it begins or resumes."""
        self.set_global_step(self.counts.global_step)
        # If a checkpoint was saved right before a validation, Lightning leaves that out.
        if self._until_validation(validated=False) == 0 < min(self._behind, self.counts.owed):
            before = self._behind
            self.drop(validated=True)
            # Lightning will count all batches that are behind as fetched.
            self._trainer.fit_loop._data_fetcher.fetched -= self._behind - before
        over = self._bounded and self._by_epochs <= 0 < self._epochs_left
        self._trainer.should_stop |= over or self._outlasts(done)

    def _outlasts(self, done: bool) -> bool:
        ends = self.drops and self._epochs_left == 1  # batches are dropped to the end of the run
        continues = self.counts.owed > 0 and self._by_steps > 0 and not ends
        return done and (continues or not self._bounded)

    def _validates(self, batch: int) -> bool:
        """Return whether the plain run validates after a step with this last batch of its epoch."""
        every = self._trainer.val_check_batch
        if self._trainer.check_val_every_n_epoch is None:
            batch = self.counts.steps * self._trainer.accumulate_grad_batches
        return isinstance(every, int) and batch % every == 0

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
        configs = self._trainer.lr_scheduler_configs
        if self._manual:
            all_own = (config.scheduler for config in configs)
            counting = (each for each in all_own if hasattr(each, "last_epoch"))
            own = (each for each in counting if not isinstance(each, _NOT_FOLLOWED))
            self._of_module = [(each, each.last_epoch) for each in own]
            return
        for config in configs:
            if not config.reduce_on_plateau:
                self._held.append((config, config.frequency))
                config.frequency = sys.maxsize

    def release(self) -> list[tuple[Any, int]]:
        """Leave the schedulers to the Trainer again, and return those that were held."""
        held = self._held
        self._held = []
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
        self._follow_module(ticks)
        self.drop()
        ended = int(self._ends_epoch)
        if self.drops:
            steps = self._steps(self._trainer.num_training_batches)
            ended = max(ended, int((self._in_epoch + counts.owed) // steps))
        self._step_schedulers(last_batches, self._epoch + ended)
        # A Trainer that is stopped validates first.
        last = done and counts.owed > 0 and self._validates(last_batches[-1])
        self._trainer.should_stop |= last or self._outlasts(done)

    def _check(self, updates: int) -> None:
        skips = not updates and self.counts.steps > 0  # a batch, but not the first
        if skips or updates == self._updates or (updates and self._by_epochs < self._by_steps):
            return
        raise UnsupportedSetupError(
            "training_step",
            f"{self._updates} optimizer steps in each",
            updates,
            "Set max_epochs, not max_steps, and let the Trainer accumulate gradients.",
        )

    def _plain_batch(self, step: int) -> int:
        in_epoch = step % self._steps(self._batches)
        return int(min((in_epoch + 1) * self._trainer.accumulate_grad_batches, self._batches))

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
        """Skip batches of the epoch, and return how many it had."""
        loaders = tree_leaves(self._trainer.train_dataloader)
        shuffled = self._skip_data == "auto" and all(map(_shuffles, loaders))
        whole = fetcher.length is not None and self._batches == self._trainer.num_training_batches
        if whole and (shuffled or self._skip_data == "tail"):  # to load them takes time
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
        trainer = self._trainer
        every = trainer.val_check_batch
        loop = trainer.fit_loop.epoch_loop
        if not (isinstance(every, int) and loop._should_check_val_epoch()):
            return math.inf
        over_epochs = trainer.check_val_every_n_epoch is None
        until = -(self._progress.total.ready if over_epochs else self._behind) % every
        return every if validated and not until else until  # 0: it comes right now

    @property
    def _ends_epoch(self) -> bool:
        return bool(self._trainer.fit_loop.epoch_loop._num_ready_batches_reached())

    def _step_schedulers(self, last_batches: list[int], epochs: int) -> None:
        before, self.counts.epochs = self.counts.epochs, max(self.counts.epochs, epochs)
        for config, frequency in self.release():
            if config.interval == "step":
                due = sum(batch % frequency == 0 for batch in last_batches)
            else:
                due = self.counts.epochs // frequency - before // frequency
            for _ in range(due):
                self._trainer.lightning_module.lr_scheduler_step(config.scheduler, None)

    def end_epoch(self) -> None:
        """Count the epoch.

        If the module has ended it, Lightning steps schedulers for the batch that is left out.
        """
        used = self._progress.current.ready
        if not self._ends_epoch:
            self.release()
            used -= used % self._trainer.accumulate_grad_batches  # the rest was not used
        self._step_schedulers([used], self._epoch)

    def _follow_module(self, ticks: int) -> None:
        stepped = []
        for k, (scheduler, before) in enumerate(self._of_module):
            count = scheduler.last_epoch - before
            if count:
                stepped.append(k)
            if k in self.counts.stepped:  # in the full step before too
                for _ in range(count * (ticks - 1)):
                    scheduler.step()
        self.counts.stepped = stepped

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as primitives."""
        return {**asdict(self.counts), "batches": self._progress.total.processed}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Load saved counts; return whether the Trainer is where it was when they were saved.

        If it has gone on since, its own counters win.
        """
        with reading("clock"):
            stepped = [int(k) for k in state["stepped"]]
            rest = {name: int(count) for name, count in state.items() if name != "stepped"}
            saved = Counts(**rest, stepped=stepped)
        since = self._trainer.global_step - saved.global_step
        batches = self._progress.total.processed - saved.batches
        # A checkpoint saved by MissedCheckpoints has an earlier global step.
        stayed = bool(batches == 0 and since <= 0)
        if not stayed:
            saved.steps += max(0, batches if self._manual else since)
            saved.global_step = self._trainer.global_step
            saved.epochs = self._epoch
        self.counts = saved
        self._resume_epoch()
        return stayed


def _ceil(number: float) -> float:
    return math.ceil(number) if math.isfinite(number) else number


def _shuffles(loader: Any) -> bool:
    sampler = getattr(loader, "sampler", None)
    return isinstance(sampler, _RANDOM) or bool(getattr(sampler, "shuffle", False))
