"""The Lightning callback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

from torch import Tensor

from hybrid_predict.config import Described, HybridConfig, tells_unknown_names
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.configuration import configuration
from hybrid_predict.integrations.last_run import LastRun
from hybrid_predict.integrations.lightning_clock import ManualClock, SkipData, TrainerClock
from hybrid_predict.integrations.lightning_packages import TrainerCallback, package_of
from hybrid_predict.integrations.lightning_screen import TrainerScreen, event_folder
from hybrid_predict.integrations.lightning_signals import HeldSignals
from hybrid_predict.integrations.lightning_start import (
    KEY,
    continue_random_states,
    refuse,
    run_config,
    saved_ledger,
    trains,
    warn,
    warn_of_averages,
    warn_of_epoch_schedulers,
    warn_of_patience,
)
from hybrid_predict.integrations.reporter import Reporter, checked_folder, ending
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.log import RunLog
from hybrid_predict.torch import ranks
from hybrid_predict.torch.cost import batch_size
from hybrid_predict.torch.random_states import random_states

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hybrid_predict.forecast.predictors import AbstractPredictor
    from hybrid_predict.updates import AbstractUpdate

_OF_A_RUN = (
    "engine", "_clock", "_reporter", "_saved", "_loss", "_signals", "_trainer", "log", "log_dict",
)  # fmt: skip
"""Attributes that copies and pickles leave out; a Trainer sets the last two, with its model."""

logger = logging.getLogger(__name__)


@tells_unknown_names
class HybridPredict(TrainerCallback):
    """Trains the Trainer's model in fewer full steps: corrected updates, predicted steps.

    It works with the Trainer of ``lightning`` and of ``pytorch_lightning``. The LightningModule,
    its optimizers and its schedulers are not modified. Global step, schedulers and epochs count
    predicted steps too, so a Trainer with ``max_steps=3000`` stops after about ``3000 / speedup``
    full steps, with its schedule complete; with ``speedup="auto"`` the run decides after how many.
    Validation, checkpoints and other callbacks see the verified weights; list this callback first.
    With manual optimization, one ``training_step`` is one full step, regardless of the number of
    updates.

    Args:
        speedup: See :class:`HybridConfig`, also for all arguments up to ``history_dtype``; None
            uses the value in ``config``, or else the default, so write ``updates={}`` to correct
            nothing.
            ``total_steps`` is only used if the Trainer does not determine the run's length.
        config: A configuration, or its fields by name; the arguments above override it.
        skip_data: How to treat the batches of predicted steps: ``draw`` loads and discards them,
            ``tail`` skips as many at the end of each epoch (for shuffled data), ``none`` uses all
            batches for full steps. ``auto`` means ``none`` unless the run's length or a scheduler
            counts epochs; then ``tail`` if all loaders shuffle, else ``draw``.
        log_dir: Folder of the run's log, which ``hybrid-predict report`` and ``watch`` read.
            ``auto`` uses the folder of the run's logger (TensorBoard, CSV), if it has one; None
            writes no log.

    Raises:
        ConfigError: If an argument is invalid.
        UnsupportedSetupError: At the start of training, if the set-up is not supported.
    """

    engine: HybridEngine | None = None
    _clock: TrainerClock | None = None
    _reporter: Reporter | None = None
    _saved: dict[str, Any] | None = None
    _loss: Tensor | None = None
    _signals: HeldSignals | None = None
    _trainer: pl.Trainer | None = None
    """The Trainer that trains at the moment."""

    def __init__(
        self,
        speedup: float | Literal["auto"] | None = None,
        *,
        full_steps: int | None = None,
        predict_steps: int | None = None,
        warmup_steps: int | float | None = None,
        cooldown_steps: int | float | None = None,
        total_steps: int | None = None,
        enabled: bool | None = None,
        shadow: bool | None = None,
        updates: Mapping[str, str | AbstractUpdate] | None = None,
        predictors: Mapping[str, str | AbstractPredictor] | None = None,
        kinds: Mapping[str, str] | None = None,
        watch_loss: bool | None = None,
        max_overhead: float | None = None,
        history_dtype: str | None = None,
        config: HybridConfig | Described | None = None,
        skip_data: SkipData = "auto",
        log_dir: str | None = "auto",
    ) -> None:
        known = HybridConfig.__dataclass_fields__
        given = {name: value for name, value in locals().items() if name in known}
        self.config = configuration(config, **given)
        if skip_data not in ("auto", "draw", "tail", "none"):
            raise ConfigError("skip_data", "'auto', 'draw', 'tail' or 'none'", skip_data)
        self.skip_data = skip_data
        self.log_dir = checked_folder(log_dir)
        self._last = LastRun()
        self._epochs: int | None = None

    def __repr__(self) -> str:
        chosen = [f"{name}={value}" for name, value in self._chosen().items()]
        return f"{type(self).__name__}({', '.join(chosen)})"

    def __str__(self) -> str:
        return f"{self!r}: {self.ledger}" if self.ledger.steps else repr(self)

    def _chosen(self) -> dict[str, str]:
        """Settings that differ from the defaults."""
        defaults, settings = vars(HybridConfig()), vars(self.config)
        return {k: repr(value) for k, value in settings.items() if value != defaults[k]}

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint; it does not depend on the arguments."""
        return KEY

    @property
    def ledger(self) -> SavingsLedger:
        """Ledger of the current, last or loaded run, or of the copy that ran last."""
        return self._last.ledger if self.engine is None else self.engine.ledger

    @property
    def history(self) -> RunLog:
        """Log of the current or last run, since it was started or resumed."""
        return self._last.log if self._reporter is None else self._reporter.log

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_A_RUN}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reset the callback, and read the run's length before other callbacks change it.

        Raises:
            UnsupportedSetupError: If another Trainer trains with this callback at the moment.
        """
        if stage == "fit":
            if self._used_by_another(trainer):
                raise UnsupportedSetupError(
                    "HybridPredict",
                    "a callback of its own in each Trainer",
                    "one with which another Trainer trains at the moment",
                    "Give this Trainer another one: HybridPredict(...) or copy.deepcopy(callback).",
                )
            self.engine, self._clock = None, None
            self._epochs = trainer.max_epochs

    def _used_by_another(self, trainer: pl.Trainer) -> bool:
        other = self._trainer
        return other is not None and other is not trainer and other.state.status == "running"

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to model, optimizers and Trainer, and load the state of a resumed run."""
        if not self.config.enabled:
            return
        refuse(trainer)
        if not trains(trainer):
            return
        kind = TrainerClock if pl_module.automatic_optimization else ManualClock
        clock = self._clock = kind(trainer, self.skip_data, self._epochs)
        saved, self._saved = self._saved, None
        stayed = saved is not None and clock.load_state_dict(saved["clock"])
        config = run_config(trainer, clock, self.config)
        assert trainer.model is not None
        engine = self.engine = HybridEngine(trainer.model, trainer.optimizers, config)
        self._trainer = trainer
        if saved is not None:
            engine.load_state_dict(saved["engine"], steps=clock.steps)
            if stayed:
                continue_random_states(trainer, saved["random"])
        first = trainer.is_global_zero
        folder = event_folder(trainer, self.log_dir) if first else None
        loggers = trainer.loggers if first else ()
        self._reporter = Reporter(engine, TrainerScreen(trainer), folder, loggers)
        self._last.ledger, self._last.log = engine.ledger, self._reporter.log
        if not clock.unavailable:
            clock.set_global_step(clock.global_step)
            trainer.callbacks.append(MissedCheckpoints(clock))  # type: ignore[attr-defined]
            self._stop_if_done(engine, clock)
        self._signals = HeldSignals(trainer)
        trainer.callbacks.append(self._signals)  # type: ignore[attr-defined]
        if engine.schedule.planned:
            warn_of_averages(trainer, config)
        if engine.schedule.planned and clock.skip_data == "none":
            warn_of_patience(trainer, config)
            warn_of_epoch_schedulers(trainer)

    @staticmethod
    def _stop_if_done(engine: HybridEngine, clock: TrainerClock) -> None:
        if engine.done and clock.outlasts and not clock.unavailable:
            clock.stop()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open a full step, unless one is under way in an accumulation window."""
        engine, clock = self.engine, self._clock
        if engine is None or clock is None or engine.in_step:
            return
        clock.begin(engine.position)
        if isinstance(clock.length, int) and not clock.unavailable:
            engine.set_length(clock.length)
        if engine.done:
            return
        if tuple(trainer.optimizers) != engine.optimizer.optimizers:
            engine.replace_optimizer(trainer.optimizers)
        clock.open()
        self._loss = None
        engine.before_step(batch_size(batch))

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Pass the loss, whose graph shows the kinds of parameters, to the engine."""
        if self.engine is not None:
            self.engine.observe_graph(loss)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Close a full step, and advance the Trainer's counters."""
        engine, clock, reporter = self.engine, self._clock, self._reporter
        if engine is None or clock is None or reporter is None or not engine.in_step:
            return
        assert self._signals is not None
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        # With several optimizers, as in a GAN, each loss is a non-stationary objective.
        if loss is not None and len(trainer.optimizers) == 1:
            self._loss = loss if self._loss is None else self._loss + loss
        if trainer.fit_loop._should_accumulate():
            return
        # Lightning divides each loss by the number of batches in the window.
        record = engine.after_step(self._loss, stop=self._signals.held)
        self._signals.agree(record.stop, last=engine.done)
        if clock.unavailable:
            clock.steps, clock.global_step = engine.ledger.steps, trainer.global_step
        else:
            clock.advance(record.ticks, engine.ledger.steps, engine.ledger.full_steps)
            self._stop_if_done(engine, clock)
        position = trainer.fit_loop.epoch_loop._batches_that_stepped
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        reporter.step(record, position, due=bool(every) and (position + 1) % every == 0)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Abandon a full step that the module ended early, and step epoch schedulers."""
        if self.engine is None or self._clock is None:
            return
        self.engine.abandon()
        if not self._clock.unavailable:
            self._clock.end_epoch()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Detach from the model, and record the run in the loggers."""
        self._detach(trainer)
        engine, reporter = self.engine, self._reporter
        if engine is None or reporter is None or self._signals is None:
            return
        self._signals.finish()
        if not engine.done and not trainer.should_stop:
            steps, total = engine.ledger.steps, engine.schedule.total
            warn(trainer, f"is not done: the Trainer ended the run at {steps} of {total} steps.")
        reporter.finish()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Undo predicted steps that are not verified, and say how the run ended."""
        if self._used_by_another(trainer):
            return
        self._detach(trainer)
        stopped = isinstance(exception, KeyboardInterrupt) or trainer.received_sigterm
        status = "stopped" if stopped else ending(exception)
        if self._reporter is not None:
            self._reporter.close(status)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Detach from the model, however the run ended."""
        if self._used_by_another(trainer):
            return
        self._detach(trainer)
        if self.engine is not None and self._reporter is not None:
            self._reporter.close("finished" if self.engine.done else "stopped")

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the state to resume from, with the states of the random generators."""
        if self.engine is not None and self._clock is not None:
            checkpoint[KEY] = {
                "engine": self.engine.state_dict(),
                "clock": self._clock.state_dict(),
                "random": ranks.gather(random_states()),
            }
        elif self._saved is not None:
            # A tuner saves before training starts, and a run with enabled=False saves the state
            # that it has loaded; the state has its own global step.
            checkpoint[KEY] = self._saved

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the loaded state until training starts, and its ledger.

        Raises:
            CheckpointError: If the state is damaged.
        """
        self._saved = checkpoint.get(KEY) if trainer.state.fn == "fit" else None
        if self._saved is not None:
            self._last.ledger = saved_ledger(self._saved)

    def _detach(self, trainer: pl.Trainer) -> None:
        self._trainer = None
        if self.engine is not None:
            self.engine.detach()
        if self._signals is not None:
            self._signals.release()
        if self._clock is not None:
            self._clock.release()
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        own = MissedCheckpoints, HeldSignals
        callbacks[:] = [each for each in callbacks if not isinstance(each, own)]


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
            due = partial(_waits, trainer, callback)
            step = next(filter(due, range(after, before, -1)), after)
            if step == after:  # it waits for none, or was called already
                continue
            self._clock.set_global_step(step)
            try:
                callback.on_train_batch_end(trainer, *args, **kwargs)
            finally:
                self._clock.set_global_step(after)


def _waits(trainer: pl.Trainer, callback: Any, step: int) -> bool:
    """Return whether a callback waits for a global step."""
    if isinstance(callback, package_of(trainer).callbacks.ModelCheckpoint):
        every = callback._every_n_train_steps
        return every > 0 and step % every == 0
    # Only callbacks that average weights have this method, in some versions of Lightning.
    should_update = getattr(callback, "should_update", None)
    return should_update is not None and bool(should_update(step_idx=step - 1))
