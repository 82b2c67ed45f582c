"""What the callback would do with a Trainer and a model, found out by one full step of training."""

from __future__ import annotations

import logging
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.file_content import is_file
from hybrid_predict.audit.meter import Meter
from hybrid_predict.audit.training import preserved
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.engine.overview import Overview, overview, shortage
from hybrid_predict.errors import ConfigError, UnsupportedSetupError, did_you_mean
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import interruptible, quiet


@dataclass
class Examination:
    """What was found.

    Args:
        plan: What would be corrected, predicted and left alone; None if the set-up is refused.
        refused: Why it is.
        plain: Why all of the run would be plain training; empty if it would not be.
        remedies: What to type so that it would not be, where the reason is the budget.
        left_out: Callbacks of the Trainer that took no part, by class.
        overhead: Operations that correcting adds, as a share of a full step's; None if not counted.
        run_log: Where the run's log would be written.
        paste: What gives the Trainer the callback.
        said: Warnings, as the run would give them.
    """

    plan: Overview | None = None
    refused: str = ""
    plain: str = ""
    remedies: str = ""
    left_out: list[str] = field(default_factory=list)
    overhead: float | None = None
    run_log: str = "in the folder of a TensorBoard or CSV logger"
    paste: str = ""
    said: list[str] = field(default_factory=list)


def examine(name: str, speedup: float | None = None) -> Examination:
    """Train one full step of what a file or a function builds, with the callback.

    Nothing is written, and random states are put back.

    Args:
        name: An audit's YAML file, or ``module:function`` for a function that returns the Trainer,
            the model and, unless the model has its own, the data.
        speedup: The callback's speedup; None for that of the file or of the Trainer's own callback,
            else 1.5.

    Raises:
        ConfigError: If nothing can be built from it.
    """
    found = Examination()
    with (
        tempfile.TemporaryDirectory() as folder,
        preserved(),
        quiet(),
        _heard(found.said),
    ):
        trainer, model, data, config = _built(name, Path(folder), found)
        if speedup is not None:
            config = replace(config, speedup=speedup, full_steps=None, predict_steps=None)
        _examine(name, trainer, model, data, config, found)
    return found


class _EnoughError(Exception):
    """One full step was trained."""


def _examine(
    name: str,
    trainer: Any,
    model: Any,
    data: dict[str, Any],
    config: HybridConfig,
    found: Examination,
) -> None:
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers.logger import DummyLogger

    from hybrid_predict.integrations.lightning import HybridPredict

    plugin = HybridPredict(config=replace(config, enabled=True), log_dir=None)
    default = plugin.config == HybridConfig()
    line = "HybridPredict(speedup=1.5)" if default else repr(plugin)
    found.paste = f"callbacks=[{line}]"

    class Probe(Callback):
        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any
        ) -> None:
            if plugin.engine is not None and plugin.ledger.full_steps:
                found.plan = overview(plugin.engine)
                _tell_plain(plugin.engine, _samples(batch), found)
            if found.plan is not None or trainer.global_step > 0:
                raise _EnoughError

    trainer.callbacks = [plugin, *_kept(trainer.callbacks, found), Probe()]
    trainer.loggers, trainer.num_sanity_val_steps = [DummyLogger()], 0
    try:
        with interruptible():
            trainer.fit(model, **data)
    except _EnoughError:
        pass
    except (UnsupportedSetupError, ConfigError) as error:
        found.refused = str(error)
    except MisconfigurationException as error:
        remedy = f"Lightning says: {error}"
        raise ConfigError("CONFIG", "a model and data to train on", name, remedy) from error
    found.overhead = plugin.ledger.correction_share


def _kept(callbacks: list[Any], found: Examination) -> list[Any]:
    """Callbacks that take part in a trial of one step, which has no logger and no validation."""
    from lightning.pytorch import callbacks as known

    from hybrid_predict.integrations.lightning import HybridPredict

    # A checkpoint of one step might take the place of one that counts.
    silent = (
        known.ProgressBar, known.ModelSummary, known.Checkpoint, known.OnExceptionCheckpoint,
        HybridPredict,
    )  # fmt: skip
    needy = (known.LearningRateMonitor, known.DeviceStatsMonitor, known.EarlyStopping)
    found.left_out = [type(c).__name__ for c in callbacks if isinstance(c, needy)]
    return [c for c in callbacks if not isinstance(c, (*silent, *needy))]


def _samples(batch: Any) -> int | None:
    """Number of samples in a batch: the length of its first tensor; None if there is none."""
    leaves = (x for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim())
    return next((len(x) for x in leaves), None)


def _tell_plain(engine: HybridEngine, samples: int | None, found: Examination) -> None:
    """Record why the run would be plain training, and what would change that."""
    start = "fell back to plain training: "
    reasons = [event["reason"] for event in engine.ledger.events]
    found.plain = next((r.removeprefix(start) for r in reasons if r.startswith(start)), "")
    lack = shortage(engine)
    if not found.plain or lack is None:
        return
    ways = [f"max_overhead={lack.max_overhead:g}", "updates={}"]
    if math.isfinite(lack.batches):
        larger = f"batches {lack.batches:.2g} times as large"
        if samples is not None:
            larger = f"batches of at least {math.ceil(samples * lack.batches):,} samples"
            larger += f" (now {samples:,})"
        ways.insert(0, larger)
    limit = engine.config.max_overhead
    found.remedies = f"max_overhead={limit:g} is too small; {', or '.join(ways)}"


class _Arm(AuditArm):
    """A Trainer as the file has it, without what an audit adds to measure it."""

    def _callbacks(self, given: Any) -> list[Any]:
        from lightning.pytorch.callbacks import ModelSummary, ProgressBar

        callbacks = given if isinstance(given, (list, tuple)) else [given]
        # Both are switched off, and Lightning refuses a Trainer that is given them all the same.
        return [c for c in callbacks if not isinstance(c, (ProgressBar, ModelSummary, type(None)))]


def _built(
    name: str, folder: Path, found: Examination
) -> tuple[Any, Any, dict[str, Any], HybridConfig]:
    """Trainer, model, the data as arguments of ``fit``, and the callback's configuration."""
    from hybrid_predict.integrations.lightning import HybridPredict
    from hybrid_predict.integrations.reporter import event_folder

    if is_file(name):
        from hybrid_predict.audit.yaml_file import read_audit

        make_run, audited, _ = read_audit(name)
        arm = _Arm(FULL, 0, audited, folder, Meter(audited.metric))
        return *arm.unpack(make_run(arm)), audited.hybrid_config()
    made = _function(name)()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        expected = "a function that returns trainer, model and, if need be, the data"
        raise ConfigError("CONFIG", expected, type(made).__name__)
    trainer, model, data = (*made, None)[:3]
    log_dir = event_folder(trainer, "auto")
    found.run_log = str(log_dir or "none: set HybridPredict(log_dir=...) for one")
    own = [c.config for c in trainer.callbacks if isinstance(c, HybridPredict)]
    config = own[0] if own else HybridConfig()
    # Lightning takes a LightningDataModule in this place too.
    return trainer, model, {"train_dataloaders": data} if data is not None else {}, config


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        found = import_module(module)
    except ImportError as error:
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        raise ConfigError("CONFIG", "module:function", name, remedy) from error
    function = getattr(found, attribute, None)
    if not callable(function):
        remedy = did_you_mean(attribute, vars(found))
        raise ConfigError("CONFIG", f"a function of {module}", attribute, remedy)
    return function


@contextmanager
def _heard(said: list[str]) -> Iterator[None]:
    """Collect the plug-in's warnings inside the block instead of showing them."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    package, listener = logging.getLogger("hybrid_predict"), Listener(logging.WARNING)
    propagate, package.propagate = package.propagate, False
    package.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        own = (str(one.message) for one in caught)
        said += [text for text in own if "HybridPredict" in text]
    finally:
        package.removeHandler(listener)
        package.propagate = propagate
