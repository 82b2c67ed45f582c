"""The Lightning callback: one line in an existing Trainer."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Literal

import torch

from hybrid_predict import distributed
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import (
    CheckpointError,
    ConfigError,
    MissingExtraError,
    RankError,
    UnsupportedSetupError,
)
from hybrid_predict.horizons import make_horizon
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.phases import Phase
from hybrid_predict.predictors import make_predictor
from hybrid_predict.report import RunHistory
from hybrid_predict.verification import random_states, set_random_states
from hybrid_predict.window import StepRecord

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.strategies import (
        DDPStrategy,
        DeepSpeedStrategy,
        ModelParallelStrategy,
        SingleDeviceStrategy,
    )
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities import rank_zero_warn
except ImportError as error:
    raise MissingExtraError("HybridPredict", "lightning") from error

from hybrid_predict.integrations.lightning_clock import MissedCheckpoints, SkipData, TrainerClock
from hybrid_predict.integrations.lightning_manual import ManualClock
from hybrid_predict.integrations.lightning_shield import refuse_loss_check, training_loss
from hybrid_predict.integrations.mlflow import Recorder

KEY = "hybrid_predict"

logger = logging.getLogger(__name__)

_STRATEGIES = (SingleDeviceStrategy, DDPStrategy, ModelParallelStrategy)


class HybridPredict(Callback):
    """Trains the Trainer's model in fewer full steps by forecasting where its weights are going.

    The LightningModule, its optimizer and its schedulers stay as they are. With the ``equivalent``
    clock, global step, schedulers and epochs tell equivalent steps, so a Trainer with
    ``max_steps=3000`` stops after about ``3000 / speedup`` full steps with its schedule complete.
    Validation, checkpoints and other callbacks see base weights; list this callback first.
    With manual optimization one ``training_step`` is one full step, whatever it updates.

    Args:
        speedup: Equivalent steps per full step, or ``"auto"`` for as many as the run's forecasts
            support; None for the configuration's (1.5).
        enabled: ``False`` leaves training bit-identical; None for the configuration's (True).
        shadow: Score forecasts without applying them; None for the configuration's (False).
        config: Everything else; ``total_steps`` comes from the Trainer.
        clock: ``equivalent``, or ``real`` to compress nothing and count full steps.
        skip_data: What happens to the batches of steps that are not taken: ``draw`` loads and drops
            them, ``tail`` leaves the end of each epoch unread (for shuffled data), ``none`` keeps
            them all; ``auto`` draws if the run's length or a scheduler counts epochs.

    Raises:
        ConfigError: If an argument is out of range.
        UnsupportedSetupError: At the start of training, if the set-up cannot work with forecasts.
    """

    def __init__(
        self,
        speedup: float | Literal["auto"] | None = None,
        *,
        enabled: bool | None = None,
        shadow: bool | None = None,
        config: HybridConfig | None = None,
        clock: Literal["equivalent", "real"] = "equivalent",
        skip_data: SkipData = "auto",
    ) -> None:
        if isinstance(speedup, HybridConfig):
            remedy = "Pass a configuration as HybridPredict(config=...)."
            raise ConfigError("speedup", "a number", "a HybridConfig", remedy)
        given = {"speedup": speedup, "enabled": enabled, "shadow": shadow}
        chosen: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
        self.config = replace(config or HybridConfig(), **chosen)
        make_horizon(self.config.horizon)
        for choice in self.config.predictors.values():
            make_predictor(choice)
        if clock not in ("equivalent", "real"):
            raise ConfigError("clock", "'equivalent' or 'real'", clock)
        if skip_data not in ("auto", "draw", "tail", "none"):
            raise ConfigError("skip_data", "'auto', 'draw', 'tail' or 'none'", skip_data)
        self.clock = clock
        self.skip_data = skip_data
        self.engine: HybridEngine | None = None
        self.history = RunHistory()
        self._trainer_clock: TrainerClock | None = None
        self._missed: MissedCheckpoints | None = None
        self._saved: dict[str, Any] | None = None
        self._real = False
        self._epochs: int | None = None
        self._losses: list[Any] = []
        self._unlogged: tuple[StepRecord, int] | None = None
        self._recorder: Recorder | None = None

    @property
    def state_key(self) -> str:
        """The same whatever the arguments, so that a resumed run may change them."""
        return KEY

    @property
    def ledger(self) -> SavingsLedger:
        """What the current, last or loaded run has cost and saved."""
        if self.engine is not None:
            return self.engine.ledger
        saved = self._saved["engine"]["ledger"] if self._saved else None
        return SavingsLedger.from_dict(saved) if saved else SavingsLedger()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forget the last run, and read the length of this one before callbacks change it."""
        if stage == "fit":
            self.engine, self._trainer_clock = None, None
            self._epochs = trainer.max_epochs

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Bind to model, optimizer and clock; continue a resumed run."""
        if not self.config.enabled:
            return
        refuse(trainer, pl_module)
        if self.config.loss_tolerance is not None:
            refuse_loss_check(trainer, pl_module)
        saved, self._saved = self._saved, None
        kind = TrainerClock if pl_module.automatic_optimization else ManualClock
        clock = self._trainer_clock = kind(trainer, self.skip_data, self._epochs)
        if saved is not None:
            clock.load_state_dict(saved["clock"])
        config = self._run_config(clock)
        self.history = RunHistory()
        self._recorder = Recorder(trainer.loggers if trainer.is_global_zero else ())
        self.engine = HybridEngine(pl_module, trainer.optimizers, config)
        if saved is not None:
            self._continue(trainer, saved)
        if not self._real:
            clock.set_global_step(clock.global_step)
            self._missed = MissedCheckpoints(clock)
            trainer.callbacks.append(self._missed)  # type: ignore[attr-defined]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Open a full step, or show its forecast again inside an accumulation window."""
        engine = self.engine
        if engine is None or engine.done:
            return
        if engine.in_step:
            engine.mapper.resume()
            return
        self._losses = []
        assert self._trainer_clock is not None
        self._trainer_clock.open()
        engine.before_step(lambda: training_loss(trainer, pl_module, batch, batch_idx))

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Close a full step and let the Trainer follow; inside a window hide its forecast."""
        engine = self.engine
        if engine is None or not engine.in_step:
            return
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        # The losses of several optimizers, as of a GAN, are no one quantity that should fall.
        if loss is not None and len(trainer.optimizers) == 1:
            self._losses.append(loss)
        if trainer.fit_loop._should_accumulate():
            engine.mapper.suspend()
            return
        # Lightning divides each loss by the number of batches in the window.
        record = engine.after_step(sum(self._losses) if self._losses else None)
        clock = self._trainer_clock
        assert clock is not None
        clock.check(engine.clock.full_steps)
        if self._missed is not None:
            self._missed.jumped_from = clock.global_step if record.ticks > 1 else None
            clock.advance(record.ticks, engine.clock.equivalent_steps, batch_idx)
            # Where epochs hold more batches than can be skipped, the clock ends before they do.
            trainer.should_stop |= engine.done and clock.owes_batches
        self.history.add(record, engine.clock.equivalent_steps)
        self._report(trainer, pl_module, record)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave a full step that the module broke off by returning -1 from a hook."""
        if self.engine is not None:
            self.engine.abandon()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let go of the model and record the run in the loggers."""
        self._let_go(trainer)
        if self.engine is not None and self._recorder is not None:
            self._log_row()
            self._recorder.log_summary(self.engine.config, self.ledger, self.history)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Put the base weights back before anybody saves them; name the rank that failed first."""
        self._let_go(trainer)
        try:
            distributed.fail_together(exception)
        except RankError as first:
            logger.error("%s", first)
        self._close(5.0)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Let go of the model, however the run ended."""
        self._let_go(trainer)
        self._close(30.0)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save what the run's future depends on, random states included."""
        if self.engine is None or self._trainer_clock is None:
            if self._saved is not None:  # a tuner saves before training starts, and loads it again
                checkpoint[KEY] = self._saved
            return
        checkpoint[KEY] = {
            "engine": self.engine.state_dict(),
            "clock": self._trainer_clock.state_dict(),
            "real": self._real,
            "history": self.history.state_dict(),
            "random": distributed.gather(random_states()),
        }

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the saved state until training starts, when there is something to put it into."""
        fitting = trainer.state.fn == TrainerFn.FITTING
        self._saved = checkpoint.get(KEY) if fitting else None

    def _is_real(self, clock: TrainerClock) -> bool:
        reason = "" if self.clock == "real" else clock.unavailable()
        if reason:
            rank_zero_warn(
                f"HybridPredict falls back to clock='real', which compresses nothing: {reason}."
            )
        return self.clock == "real" or bool(reason)

    def _run_config(self, clock: TrainerClock) -> HybridConfig:
        length = clock.length
        if not isinstance(length, int):
            raise UnsupportedSetupError(
                "Trainer",
                "a run whose number of optimizer updates is known",
                length,
                "Set Trainer(max_steps=...).",
            )
        self._real = self._is_real(clock)
        speedup: float | Literal["auto"] = 1.0 if self._real else self.config.speedup
        return replace(self.config, speedup=speedup, total_steps=max(1, length))

    def _continue(self, trainer: pl.Trainer, saved: dict[str, Any]) -> None:
        assert self.engine is not None
        if saved["real"] != self._real:
            raise CheckpointError(
                "clock: expected a checkpoint of a run with the same clock. "
                "Resume with the clock of the saved run."
            )
        self.engine.load_state_dict(saved["engine"])
        self.history.load_state_dict(saved["history"])
        states = saved["random"]
        if len(states) == distributed.size():
            set_random_states(states[distributed.rank()])
        loop = trainer.fit_loop
        progress = loop.epoch_loop.batch_progress
        if loop.restarted_on_epoch_end or progress.is_last_batch or progress.current.ready == 0:
            # The epoch's iterator was made, and drew its seeds, before the states were put back.
            assert loop._data_fetcher is not None
            iter(loop._data_fetcher)

    def _report(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, record: StepRecord
    ) -> None:
        ledger = self.ledger
        if trainer.progress_bar_callback is not None:
            # A tensor on the host stays there; a plain number would be sent to the device.
            saved = torch.tensor(ledger.saved_steps_fraction)
            # A training step that fetches its batches itself gives Lightning no batch to size up.
            pl_module.log("saved", saved, prog_bar=True, logger=False, batch_size=1)
        position = trainer.fit_loop.epoch_loop._batches_that_stepped
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        self._unlogged = (record, position)
        if self._recorder is not None:
            self._recorder.log_events(ledger, position)
        if trainer.loggers and every and (position + 1) % every == 0:
            self._log_row()

    def _log_row(self) -> None:
        """Log the last full step, unless it has been."""
        if self._unlogged is None or self._recorder is None:
            return
        (record, position), self._unlogged = self._unlogged, None
        ledger = self.ledger
        metrics = {
            "phase": list(Phase).index(record.phase),
            "horizon": record.horizon,
            "alignment": record.alignment,
            "residual": record.residual,
            "acceptance": ledger.acceptance,
            "full_steps": ledger.full_steps,
            "equivalent_steps": ledger.equivalent_steps,
            "saved_steps_fraction": ledger.saved_steps_fraction,
            "overhead_fraction": ledger.overhead_fraction,
            "estimated_seconds_saved": ledger.estimated_seconds_saved,
        }
        known = {f"{KEY}/{name}": float(v) for name, v in metrics.items() if v is not None}
        self._recorder.log_metrics(known, position)

    def _close(self, timeout: float) -> None:
        """Send what waits to be logged; the next run has a recorder of its own."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(timeout)

    def _let_go(self, trainer: pl.Trainer) -> None:
        if self.engine is not None:
            self.engine.detach()
        if self._missed is not None:
            trainer.callbacks.remove(self._missed)  # type: ignore[attr-defined]
            self._missed = None


def refuse(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Raise for set-ups in which forecasts would be wrong.

    Args:
        trainer: The Trainer.
        pl_module: What it is to train.

    Raises:
        UnsupportedSetupError: If this is such a set-up.
    """
    found = [
        (
            sum(isinstance(c, HybridPredict) for c in trainer.callbacks) > 1,  # type: ignore[attr-defined]
            "one HybridPredict callback",
            "several",
            "Keep one of them.",
        ),
        (
            not isinstance(trainer.strategy, _STRATEGIES)
            or isinstance(trainer.strategy, DeepSpeedStrategy),
            "a single device, DDP, or ModelParallelStrategy with fully_shard (FSDP2)",
            type(trainer.strategy).__name__,
            "Set Trainer(strategy='ddp'), or a ModelParallelStrategy to shard the model.",
        ),
    ]
    for unsupported, expected, got, remedy in found:
        if unsupported:
            raise UnsupportedSetupError(
                "Trainer", expected, got, f"{remedy} Or remove HybridPredict."
            )
