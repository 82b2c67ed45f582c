"""What the callback would do with a Trainer and a model, found out by one full step of training."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.file_content import is_file
from hybrid_predict.audit.meter import Meter
from hybrid_predict.audit.training import preserved
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine.overview import Overview, overview
from hybrid_predict.errors import ConfigError, UnsupportedSetupError, did_you_mean
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import interruptible, quiet


@dataclass
class Examination:
    """What was found.

    Args:
        plan: What would be corrected, predicted and left alone; None if the set-up is refused.
        refused: Why it is.
        overhead: Operations that correcting adds, as a share of a full step's; None if not counted.
        event_log: Where the run's event log would be written.
        paste: What gives the Trainer the callback.
        said: Warnings, as the run would give them.
    """

    plan: Overview | None = None
    refused: str = ""
    overhead: float | None = None
    event_log: str = "in the folder of a TensorBoard or CSV logger"
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
        _examine(trainer, model, data, config, found)
    return found


class _EnoughError(Exception):
    """One full step was trained."""


def _examine(
    trainer: Any, model: Any, data: dict[str, Any], config: HybridConfig, found: Examination
) -> None:
    from lightning.pytorch.callbacks import (
        Callback,
        Checkpoint,
        ModelSummary,
        OnExceptionCheckpoint,
        ProgressBar,
    )

    from hybrid_predict.integrations.lightning import HybridPredict

    plugin = HybridPredict(config=replace(config, enabled=True), log_dir=None)
    default = plugin.config == HybridConfig()
    line = "HybridPredict(speedup=1.5)" if default else repr(plugin)
    found.paste = f"callbacks=[{line}]"

    class Probe(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if plugin.engine is not None and plugin.ledger.full_steps:
                found.plan = overview(plugin.engine)
            if found.plan is not None or trainer.global_step > 0:
                raise _EnoughError

    # A checkpoint of one step might take the place of one that counts.
    left_out = (ProgressBar, ModelSummary, Checkpoint, OnExceptionCheckpoint, HybridPredict)
    kept = [c for c in trainer.callbacks if not isinstance(c, left_out)]
    trainer.callbacks = [plugin, *kept, Probe()]
    trainer.loggers, trainer.num_sanity_val_steps = [], 0
    try:
        with interruptible():
            trainer.fit(model, **data)
    except _EnoughError:
        pass
    except (UnsupportedSetupError, ConfigError) as error:
        found.refused = str(error)
    found.overhead = plugin.ledger.correction_share


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
    found.event_log = str(log_dir or "none: set HybridPredict(log_dir=...) for one")
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
