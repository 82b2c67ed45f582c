"""Checks and warnings before and during a Trainer's run, and the state from which a run resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.ranks import processes
from hybrid_predict.saved import check_entries, check_state, reading
from hybrid_predict.tensors.random_states import set_random_states

if TYPE_CHECKING:
    import lightning.pytorch as pl

KEY = "hybrid_predict"
"""Key of the callback's state in a checkpoint."""


def saved_ledger(saved: Any) -> SavingsLedger:
    """Return the ledger of the callback's state in a checkpoint; refuse a damaged state."""
    with reading("state"):
        check_entries(saved, {"engine": dict, "clock": dict, "random": list})
        check_state(saved["engine"])
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
        expected = "one HybridPredict callback"
        got = "several"
        remedy = "Keep one of them."
    elif not isinstance(strategy, supported) or isinstance(strategy, known.DeepSpeedStrategy):
        expected = "a single device, DDP, FSDP, or ModelParallelStrategy with fully_shard (FSDP2)"
        got = type(strategy).__name__
        remedy = "Set Trainer(strategy='ddp'), or a ModelParallelStrategy to shard the model."
    else:
        return
    raise UnsupportedSetupError("Trainer", expected, got, f"{remedy} Or remove HybridPredict.")


def run_config(trainer: pl.Trainer, length: int | None, config: HybridConfig) -> HybridConfig:
    """Return a configuration with the run's length, which the Trainer may not know."""
    length = config.total_steps if length is None else length
    if length is not None:
        return config.with_length(length)
    got = "one without max_steps or max_epochs"
    remedy = "Set Trainer(max_steps=...)"
    if trainer.max_epochs != -1:
        got = f"max_epochs={trainer.max_epochs} and a loader without length"
        remedy = "Set Trainer(limit_train_batches=...), an epoch's batches, or max_steps"
    remedy += "; or HybridPredict(total_steps=...), at which the run ends."
    expected = "a run whose number of optimizer updates is known"
    raise UnsupportedSetupError("Trainer", expected, got, remedy)


def warn_of_counts(trainer: pl.Trainer, config: HybridConfig, *, drops: bool) -> None:
    """Warn of what counts full steps, epochs or validations, if the run has fewer of them."""
    callbacks = package_of(trainer).callbacks
    speedup = config.compression  # with "auto" the most steps that a full step brings
    averages = getattr(callbacks, "WeightAveraging", ())  # not in old versions
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        every = getattr(callback, "update_every_n_steps", 1)
        fades = {"avg_fn", "multi_avg_fn"} & getattr(callback, "_kwargs", {}).keys()
        if isinstance(callback, averages) and fades and 0 < every < speedup:
            counted = f"update_every_n_steps={speedup:g} and " if config.paced else ""
            warn(
                trainer,
                f"makes predicted steps, which the decay of {type(callback).__name__} does not "
                "count: its average reaches further back than in plain training. In place of its "
                f"decay write {counted}decay ** {speedup / every:.4g}.",
            )
    if drops:
        return
    schedulers = trainer.lr_scheduler_configs
    names = {type(c).__name__ for c in trainer.callbacks if isinstance(c, callbacks.EarlyStopping)}  # type: ignore[attr-defined]
    names |= {"ReduceLROnPlateau" for c in schedulers if c.reduce_on_plateau}
    if names:
        remedy = "Shorten it" if config.paced else f"Divide it by {speedup:g}"
        warn(
            trainer,
            f"uses all batches, and the patience of {' and '.join(sorted(names))} counts "
            f"validations or epochs, of which the run has fewer. {remedy}, or bound the run by "
            "max_epochs alone, which keeps all validations.",
        )
    by_epoch = any(c.interval == "epoch" and not c.reduce_on_plateau for c in schedulers)
    if by_epoch and trainer.lightning_module.automatic_optimization:
        warn(
            trainer,
            "uses all batches, so the run has fewer epochs than plain training, and schedulers "
            "with interval 'epoch' do not reach their end. Use interval 'step', or "
            "skip_data='draw'.",
        )


def warn(trainer: pl.Trainer, text: str) -> None:
    """Warn on rank 0, where Lightning's own warnings are shown."""
    package_of(trainer).utilities.rank_zero_warn(f"HybridPredict {text}")
