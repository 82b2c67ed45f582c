"""The Lightning callback."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

from torch import Tensor

from hybrid_predict.config import Described, HybridConfig, tells_unknown_names
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import (
    ConfigError,
    MissingExtraError,
    UnsupportedSetupError,
    reading,
    summary,
)
from hybrid_predict.integrations.lightning_clock import SkipData, TrainerClock
from hybrid_predict.integrations.options import as_call, checked_folder, configuration
from hybrid_predict.integrations.reporter import Reporter, show
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.ranks import processes
from hybrid_predict.runs.log import RunLog
from hybrid_predict.state import check_state
from hybrid_predict.tensors.random_states import random_states, set_random_states

KEY = "hybrid_predict"  # of the callback's state in a checkpoint

_NAMES = ("pytorch_lightning", "lightning.pytorch")
_INSTALLED: list[Any] = []
_shared: Any = sys.modules.get("lightning_utilities.core.rank_zero")
_log = _shared.log if {*_NAMES} & sys.modules.keys() else None
for _name in _NAMES:
    with suppress(ImportError):
        _INSTALLED.append(import_module(_name))
if _log is not None:  # importing a package redirects the messages of the other to its own logger
    _shared.log = _log
if not _INSTALLED:
    raise MissingExtraError("HybridPredict", "lightning")

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hybrid_predict.forecast.predictors import Predictor
    from hybrid_predict.updates import AbstractUpdate

    TrainerCallback = pl.Callback
else:

    class TrainerCallback(*(package.Callback for package in _INSTALLED)):
        """A ``Callback`` of every installed package, as each Trainer asks for its own."""


@final
class LastRun:
    """Ledger and log of the last run of a callback, or of any of its copies in this process.

    Some packages train with a deep copy of a callback. A deep copy shares this object with its
    original; a pickle has a ledger of its own, and no log.
    """

    log = RunLog()

    def __init__(self) -> None:
        self.ledger = SavingsLedger()

    def __deepcopy__(self, memo: dict[int, Any]) -> LastRun:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"ledger": self.ledger}


@final
@dataclass
class _Run:
    """What exists while a Trainer trains, and until the callback is used again."""

    trainer: pl.Trainer
    engine: HybridEngine
    clock: TrainerClock
    reporter: Reporter
    losses: list[Tensor] = field(default_factory=list)  # of the open full step, by batch
    metrics: dict[str, Any] = field(default_factory=dict)  # when the last validation began
    hook: Any = None

    def mean_loss(self, last: Tensor | None = None) -> Any:
        losses = self.losses if last is None else [*self.losses, last]
        window = self.trainer.accumulate_grad_batches  # Lightning divides each loss by it
        if window == 1 or not losses:
            return losses[0] if losses else None
        return sum(losses) * (window / len(losses))

    def pass_mean_loss(self, optimizer: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Let the closure of a verifying step return the loss that judges it."""
        closure = kwargs.get("closure")
        if closure is None or self.engine.position == self.engine.ledger.steps:
            return None

        def observed() -> Any:
            return self.mean_loss(closure())

        return args, {**kwargs, "closure": observed}


@tells_unknown_names
class HybridPredict(TrainerCallback):
    """Trains the Trainer's model in fewer full steps: corrected updates, predicted steps.

    It works with the Trainer of ``lightning`` and of ``pytorch_lightning``, one at a time; a second
    Trainer that trains meanwhile needs a callback of its own. The LightningModule,
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
    _run: _Run | None = None
    _saved: dict[str, Any] | None = None

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
        predictors: Mapping[str, str | Predictor] | None = None,
        kinds: Mapping[str, str] | None = None,
        watch_loss: bool | None = None,
        on_overfit: str | None = None,
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
        return as_call(type(self).__name__, self.config)

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
        return self._last.log if self._run is None else self._run.reporter.log

    def __getstate__(self) -> dict[str, Any]:
        of_a_run = {"engine", "_run", "_saved", "log", "log_dict"}  # a Trainer sets the last two
        return {name: value for name, value in vars(self).items() if name not in of_a_run}

    def on_init_end(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse the Trainer of transformers, which calls this when it is made."""
        expected = "HybridPredictCallback, from hybrid_predict.integrations.huggingface"
        raise UnsupportedSetupError("callbacks", expected, type(self).__name__)

    on_train_begin = on_init_end  # it is given to the Trainer later

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reset the callback, and read the run's length before other callbacks change it."""
        if stage == "fit":
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            if sum(isinstance(each, HybridPredict) for each in callbacks) > 1:
                remedy = "Keep one of them."
                raise UnsupportedSetupError("callbacks", "one HybridPredict", "several", remedy)
            self.engine = self._run = None
            self._epochs = trainer.max_epochs

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach to model, optimizers and Trainer, and load the state of a resumed run."""
        if not self.config.enabled:
            return
        refuse(trainer)
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        if not any(p.requires_grad for group in groups for p in group["params"]):
            text = "HybridPredict does nothing in this run: no optimizer has a parameter to train."
            package_of(trainer).utilities.rank_zero_warn(text)
            return
        clock = TrainerClock(trainer, self.skip_data, self._epochs)
        saved, self._saved = self._saved, None
        stayed = saved is not None and clock.load_state_dict(saved["clock"])
        config = run_config(trainer, clock.length, self.config)
        assert trainer.model is not None
        engine = self.engine = HybridEngine(trainer.model, trainer.optimizers, config)
        if saved is not None:
            engine.load_state_dict(saved["engine"], steps=clock.counts.steps)
            if stayed:
                continue_random_states(trainer, saved["random"])
        first = trainer.is_global_zero
        folder = log_folder(trainer, self.log_dir) if first else None
        beside_bar = first and trainer.progress_bar_callback is not None
        say = show if beside_bar else package_of(trainer).utilities.rank_zero_info
        if clock.drops and engine.schedule.planned and not config.shadow:
            say("HybridPredict skips the batches of predicted steps in their epochs (skip_data).")
        loggers = trainer.loggers if first else ()
        reporter = Reporter(engine, say, folder, loggers, {"skip_data": self.skip_data})
        self._last.ledger = engine.ledger
        self._last.log = reporter.log
        run = self._run = _Run(trainer, engine, clock, reporter)
        run.hook = trainer.optimizers[0].register_step_pre_hook(run.pass_mean_loss)
        trainer.callbacks.append(MissedCheckpoints(clock))  # type: ignore[attr-defined]
        clock.start(engine.done)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open a full step, unless one is under way in an accumulation window."""
        run = self._run
        if run is None or run.engine.in_step:
            return
        length = run.clock.begin()
        if length is not None:
            run.engine.set_length(length)
        if run.engine.done:
            return
        if tuple(trainer.optimizers) != run.engine.optimizer.optimizers:
            expected = "the optimizers with which training began"
            remedy = "Change or add parameter groups instead, or call fit again for the others."
            raise UnsupportedSetupError("Trainer.optimizers", expected, "others", remedy)
        run.clock.hold()
        run.losses.clear()
        run.engine.before_step()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor
    ) -> None:
        """Pass the loss, whose graph shows the kinds of parameters, to the engine."""
        if self.engine is not None:
            self.engine.observe_graph(loss)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        """Close a full step, and advance the Trainer's counters."""
        run = self._run
        if run is None or not run.engine.in_step:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        # With several optimizers, as in a GAN, each loss is a non-stationary objective.
        if loss is not None and len(trainer.optimizers) == 1:
            run.losses.append(loss)
        if trainer.fit_loop._should_accumulate():
            return
        record = run.engine.after_step(run.mean_loss())
        run.clock.advance(record.ticks, run.engine.done)
        position = trainer.fit_loop.epoch_loop._batches_that_stepped
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        run.reporter.step(record, position, due=bool(every) and (position + 1) % every == 0)
        # The progress bar shows them behind the user's metrics.
        trainer.progress_bar_metrics.update(run.reporter.shown)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the metrics from before, which a validation may leave as they are."""
        if self._run is not None:
            self._run.metrics = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pass the metric to the engine; drop batches that waited for a validation in the epoch."""
        run = self._run
        if run is None or trainer.state.fn != "fit":
            return
        best = self.ledger.best
        values = trainer.callback_metrics
        metrics = monitored(trainer, values)
        if best is not None and best["metric"] in metrics:
            metrics = {best["metric"]: metrics[best["metric"]]}
        logged = [name for name in metrics if values.get(name) is not run.metrics.get(name)]
        # A rank that has logged none takes part: others may have one.
        name = logged[0] if logged else next(iter(metrics))
        value = values[name] if logged else math.nan
        run.engine.observe_validation(value, name, larger_is_better=metrics[name])
        trainer.should_stop |= run.engine.overfits and self.config.on_overfit == "stop"
        if not run.engine.in_step:
            run.clock.drop(validated=True)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Abandon a full step that the module ended early, and count the epoch."""
        if self._run is not None:
            self._run.engine.abandon()
            self._run.clock.end_epoch()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Detach from the model, and record the run in the loggers."""
        done = self.engine is not None and self.engine.done
        self._end(trainer, "finished" if done else "stopped")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Undo predicted steps that are not verified, and say how the run ended."""
        failed = isinstance(exception, Exception) and not trainer.received_sigterm
        self._end(trainer, f"failed: {summary(exception)}" if failed else "stopped")

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Detach from the model, however the run ended."""
        if stage == "fit":
            self._end(trainer, "stopped")

    def _end(self, trainer: pl.Trainer, status: str) -> None:
        try:
            if self.engine is not None:
                self.engine.detach()
        finally:
            if self._run is not None:
                self._run.hook.remove()
                self._run.clock.release()
                self._run.reporter.close(status)
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            callbacks[:] = [each for each in callbacks if not isinstance(each, MissedCheckpoints)]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the state to resume from, with the states of the random generators."""
        if self._run is not None:
            checkpoint[KEY] = {
                "engine": self._run.engine.state_dict(),
                "clock": self._run.clock.state_dict(),
                "random": processes.gather(random_states()),
            }
        elif self._saved is not None:
            # A tuner saves before training starts, and a run with enabled=False saves the state
            # that it has loaded; the state has its own global step.
            checkpoint[KEY] = self._saved

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the loaded state until training starts; a damaged one is a CheckpointError."""
        saved = checkpoint.get(KEY) if trainer.state.fn == "fit" else None
        self._saved = None
        if saved is not None:
            with reading():
                engine = saved["engine"]
                check_state(engine)
                counts = dict(saved["clock"])
                self._saved = {"engine": engine, "clock": counts, "random": list(saved["random"])}
                self._last.ledger = SavingsLedger.from_dict(engine["ledger"])


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
        after = trainer.global_step
        skipped = range(after - 1, after if before is None else before, -1)
        for callback in list(trainer.callbacks):  # type: ignore[attr-defined]
            step = next((each for each in skipped if _waits(trainer, callback, each)), None)
            if step is None or _waits(trainer, callback, after):  # else it was called already
                continue
            self._clock.set_global_step(step)
            try:
                callback.on_train_batch_end(trainer, *args, **kwargs)
            finally:
                self._clock.set_global_step(after)


def _waits(trainer: pl.Trainer, callback: Any, step: int) -> bool:
    if isinstance(callback, package_of(trainer).callbacks.ModelCheckpoint):
        every = callback._every_n_train_steps
        return every > 0 and step % every == 0
    # Only callbacks that average weights have this method, in some versions of Lightning.
    should_update = getattr(callback, "should_update", None)
    return should_update is not None and bool(should_update(step_idx=step - 1))


def package_of(trainer: Any) -> Any:
    """Return a Trainer's package, as a module; UnsupportedSetupError if it is none of them."""
    for package in _INSTALLED:
        if isinstance(trainer, package.Trainer):
            return package
    expected = "a Trainer of lightning.pytorch or pytorch_lightning"
    raise UnsupportedSetupError("Trainer", expected, type(trainer).__name__)


def monitored(trainer: pl.Trainer, logged: Iterable[str] = ()) -> dict[str, bool]:
    """Return metrics by which a run may be judged, and whether larger values are better.

    The first that a validation logs counts: those of ``EarlyStopping``, those of
    ``ModelCheckpoint``, ``val_loss``, and the ``logged`` ones that have "loss" in their names.
    """
    known = package_of(trainer).callbacks
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    found: dict[str, bool] = {}
    for kind in (known.EarlyStopping, known.ModelCheckpoint):
        for callback in callbacks:
            if isinstance(callback, kind) and callback.monitor is not None:
                found.setdefault(callback.monitor, callback.mode == "max")
    for name in ("val_loss", *(name for name in logged if "loss" in name.lower())):
        found.setdefault(name, False)
    return found


def refuse(trainer: pl.Trainer) -> None:
    """Raise UnsupportedSetupError for set-ups that are not supported."""
    known = package_of(trainer).strategies
    sharding = (known.ModelParallelStrategy, known.FSDPStrategy)
    supported = (known.SingleDeviceStrategy, known.DDPStrategy, *sharding)
    strategy = trainer.strategy
    if isinstance(strategy, supported) and not isinstance(strategy, known.DeepSpeedStrategy):
        return
    raise UnsupportedSetupError(
        "Trainer",
        "a single device, DDP, FSDP, or ModelParallelStrategy with fully_shard (FSDP2)",
        type(strategy).__name__,
        "Set Trainer(strategy='ddp'), or a ModelParallelStrategy to shard the model. "
        "Or remove HybridPredict.",
    )


def run_config(trainer: pl.Trainer, length: int | None, config: HybridConfig) -> HybridConfig:
    """Return a configuration with the run's length, which the Trainer may not know."""
    asked = config.total_steps
    if length is not None and asked is not None and asked != length:
        text = f"HybridPredict(total_steps={asked}) has no effect: the Trainer takes {length}."
        package_of(trainer).utilities.rank_zero_warn(text)
    length = asked if length is None else length
    if length is not None:
        return config.with_length(length)
    batches = trainer.num_training_batches
    raise UnsupportedSetupError(
        "Trainer",
        "a run whose number of optimizer updates is known",
        f"max_steps={trainer.max_steps}, max_epochs={trainer.max_epochs}, {batches} batches",
        "Set Trainer(max_steps=...), or max_epochs with limit_train_batches if the loader has no "
        "length; or HybridPredict(total_steps=...), at which the run ends.",
    )


def log_folder(trainer: pl.Trainer, log_dir: str | None) -> Path | None:
    """Return the folder for the log of a run, or None; ``auto`` is that of the first logger."""
    if log_dir != "auto":
        return None if log_dir is None else Path(log_dir)
    folders = [getattr(each, "log_dir", None) for each in trainer.loggers]
    folder = next((each for each in folders if isinstance(each, str)), "://")
    return None if "://" in folder else Path(folder)


def continue_random_states(trainer: pl.Trainer, states: list[dict[str, Any]]) -> None:
    """Restore every rank's random generators, and the iterator of the epoch."""
    if len(states) == processes.size():
        set_random_states(states[processes.rank()])
    loop = trainer.fit_loop
    progress = loop.epoch_loop.batch_progress
    if loop.restarted_on_epoch_end or progress.is_last_batch or progress.current.ready == 0:
        # The epoch's iterator drew its seeds before the states were restored; make a new one.
        assert loop._data_fetcher is not None
        iter(loop._data_fetcher)
