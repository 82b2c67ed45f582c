"""What a Lightning Trainer is asked before it trains: package, support, length, folder, states."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import MissingExtraError, UnsupportedSetupError
from hybrid_predict.ranks import processes
from hybrid_predict.tensors.random_states import set_random_states

KEY = "hybrid_predict"
"""Key of the callback's state in a checkpoint."""

_INSTALLED: list[Any] = []
_shared: Any = sys.modules.get("lightning_utilities.core.rank_zero")
_log = getattr(_shared, "log", None)
for _name in ("pytorch_lightning", "lightning.pytorch"):
    with suppress(ImportError):
        _INSTALLED.append(import_module(_name))
if _log is not None:  # importing a package redirects the messages of the other to its own logger
    _shared.log = _log
if not _INSTALLED:
    raise MissingExtraError("HybridPredict", "lightning")

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback

    TrainerCallback = Callback
else:

    class TrainerCallback(*(package.Callback for package in _INSTALLED)):
        """A ``Callback`` of every installed package, as each Trainer asks for its own."""


def package_of(trainer: Any) -> Any:
    """Return the package that a Trainer's class comes from, as a module.

    Raises:
        UnsupportedSetupError: If it comes from another package.
    """
    for package in _INSTALLED:
        if isinstance(trainer, package.Trainer):
            return package
    expected = "a Trainer of lightning.pytorch or pytorch_lightning"
    raise UnsupportedSetupError("Trainer", expected, type(trainer).__name__)


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
    length = config.total_steps if length is None else length
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
