"""Checks and warnings before and during a Trainer's run, and the state from which a run resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_clock import TrainerClock
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.ranks import processes
from hybrid_predict.runs.random_states import set_random_states
from hybrid_predict.saved import check_entries, check_state, damaged, reading

if TYPE_CHECKING:
    import lightning.pytorch as pl

KEY = "hybrid_predict"
"""Key of the callback's state in a checkpoint."""


def saved_ledger(saved: Any) -> SavingsLedger:
    """Return the ledger of the callback's state in a checkpoint; refuse a damaged state."""
    check_entries(saved, {"engine": dict})
    check_state(saved["engine"])
    check_entries(saved, {"clock": dict, "random": list})
    if len(saved["random"]) != saved["engine"]["ranks"]:
        raise damaged("random states of every rank", len(saved["random"]))
    with reading("clock"):  # the engine counts first
        steps, most = saved["clock"]["steps"], saved["engine"]["ledger"]["steps"]
        if steps > most:
            raise damaged(f"steps of the Trainer to be at most {most}", steps)
    with reading("ledger"):
        return SavingsLedger.from_dict(saved["engine"]["ledger"])


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


def trains(trainer: pl.Trainer) -> bool:
    """Return whether an optimizer has a parameter to update; warn if there is none."""
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    found = any(p.requires_grad for group in groups for p in group["params"])
    if not found:
        warn(trainer, "does nothing in this run: no optimizer has a parameter that is trained.")
    return found


def refuse(trainer: pl.Trainer) -> None:
    """Raise UnsupportedSetupError for set-ups that are not supported."""
    known = package_of(trainer).strategies
    sharding = (known.ModelParallelStrategy, known.FSDPStrategy)
    supported = (known.SingleDeviceStrategy, known.DDPStrategy, *sharding)
    strategy, callbacks = trainer.strategy, trainer.callbacks  # type: ignore[attr-defined]
    if sum(c.state_key == KEY for c in callbacks) > 1:
        expected, got, remedy = "one HybridPredict callback", "several", "Keep one of them."
    elif not isinstance(strategy, supported) or isinstance(strategy, known.DeepSpeedStrategy):
        expected = "a single device, DDP, FSDP, or ModelParallelStrategy with fully_shard (FSDP2)"
        got = type(strategy).__name__
        remedy = "Set Trainer(strategy='ddp'), or a ModelParallelStrategy to shard the model."
    else:
        return
    raise UnsupportedSetupError("Trainer", expected, got, f"{remedy} Or remove HybridPredict.")


def run_config(trainer: pl.Trainer, clock: TrainerClock, config: HybridConfig) -> HybridConfig:
    """Return a configuration with the run's length, and without predicted steps if need be."""
    length = clock.length if isinstance(clock.length, int) else config.total_steps
    if length is None:
        got, remedy = "one without max_steps or max_epochs", "Set Trainer(max_steps=...)"
        if trainer.max_epochs != -1:
            got = f"max_epochs={trainer.max_epochs} and a loader without length"
            remedy = "Set Trainer(limit_train_batches=...), an epoch's batches, or max_steps"
        expected = "a run whose number of optimizer updates is known"
        remedy += "; or HybridPredict(total_steps=...), at which the run ends."
        raise UnsupportedSetupError("Trainer", expected, got, remedy)
    config = config.with_length(length)
    if not clock.unavailable:
        return config
    warn(trainer, f"makes no predicted steps: {clock.unavailable}.")
    return config.with_speedup(1.0)


def warn_of_patience(trainer: pl.Trainer, config: HybridConfig) -> None:
    """Warn if a callback counts patience in validations or epochs, of which the run has fewer."""
    stops = package_of(trainer).callbacks.EarlyStopping
    patient = [
        *{type(c).__name__ for c in trainer.callbacks if isinstance(c, stops)},  # type: ignore[attr-defined]
        *{"ReduceLROnPlateau" for c in trainer.lr_scheduler_configs if c.reduce_on_plateau},
    ]
    if not patient:
        return
    if config.paced:
        fewer, remedy = "fewer, the more predicted steps it takes", "Bound"
    else:
        speedup = f"{config.compression:g}"
        fewer, remedy = f"about {speedup} times fewer", f"Divide patience by {speedup}, or bound"
    warn(
        trainer,
        f"uses all batches, and the patience of {' and '.join(patient)} counts validations or "
        f"epochs, of which the run has {fewer}. {remedy} the run by max_epochs alone, which keeps "
        "all validations.",
    )


def warn_of_epoch_schedulers(trainer: pl.Trainer) -> None:
    """Warn if a scheduler counts epochs, of which a run that uses all batches has fewer."""
    counting = [c for c in trainer.lr_scheduler_configs if c.interval == "epoch"]
    if trainer.lightning_module.automatic_optimization and not all(
        c.reduce_on_plateau for c in counting
    ):
        warn(
            trainer,
            "uses all batches, so the run has fewer epochs than plain training, and schedulers "
            "with interval 'epoch' do not reach their end. Use interval 'step', or tell the "
            "Trainer how long an epoch is: limit_train_batches.",
        )


def warn_of_averages(trainer: pl.Trainer, config: HybridConfig) -> None:
    """Warn if a callback averages weights with a decay, which counts full steps alone."""
    averages = getattr(package_of(trainer).callbacks, "WeightAveraging", ())  # not in old versions
    speedup = config.compression  # with "auto" the most steps that a full step brings
    counted = f"update_every_n_steps={speedup:g}, which counts all steps, and "
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        every = getattr(callback, "update_every_n_steps", 1)
        fades = {"avg_fn", "multi_avg_fn"} & getattr(callback, "_kwargs", {}).keys()
        if isinstance(callback, averages) and fades and 0 < every < speedup:
            name, new = type(callback).__name__, f"decay ** {speedup / every:.4g}"
            warn(
                trainer,
                f"makes predicted steps, which the decay of {name} does not count: its average "
                "reaches further back than in plain training. In place of its decay write "
                f"{counted if config.paced else ''}{new}.",
            )


def warn(trainer: pl.Trainer, text: str) -> None:
    """Warn on rank 0, where Lightning's own warnings are shown."""
    package_of(trainer).utilities.rank_zero_warn(f"HybridPredict {text}")
