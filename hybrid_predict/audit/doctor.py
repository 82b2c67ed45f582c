"""What the callback would do with a Trainer and a model, from one full step of training."""

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
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import callbacks as known
from lightning.pytorch.loggers.logger import DummyLogger
from torch.utils._pytree import tree_leaves

from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.file import is_file, read_audit
from hybrid_predict.audit.meter import TrialEnd
from hybrid_predict.audit.training import preserved
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import ConfigError, UnsupportedSetupError, did_you_mean
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.integrations.reporter import event_folder
from hybrid_predict.report.overview import Overview, overview, shortage
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import interruptible, quiet

_SILENT = (
    known.ProgressBar, known.ModelSummary, known.Checkpoint, known.OnExceptionCheckpoint,
    HybridPredict,
)  # fmt: skip
"""Callbacks that a trial of one step leaves out; its checkpoint could replace one that counts."""

_NEEDY = (known.LearningRateMonitor, known.DeviceStatsMonitor, known.EarlyStopping)
"""Callbacks that need a logger or a validation, which the trial does not have."""


@dataclass
class Examination:
    """What a trial of one full step has shown.

    There is no ``plan`` if the set-up is ``refused``. ``plain`` is why the whole run would be plain
    training, and ``remedies`` what to change if the reason is the budget. ``left_out`` are classes
    of callbacks, ``overhead`` the operations that correcting adds as a share of a full step's, and
    ``paste`` is Python source that gives the Trainer the callback.
    """

    plan: Overview | None = None
    refused: str = ""
    plain: str = ""
    remedies: str = ""
    left_out: list[str] = field(default_factory=list)
    overhead: float | None = None
    run_log: str = "in the folder of a TensorBoard or CSV logger"
    paste: str = ""
    warnings: list[str] = field(default_factory=list)


def examine(name: str, speedup: float | Literal["auto"] | None = None) -> Examination:
    """Train one full step of what a file or a function builds, with the callback.

    Writes nothing, and restores random states. ``name`` is an audit's YAML file, or
    ``module:function`` for a function that returns the Trainer, the model and, unless the model has
    its own, the data. Without ``speedup``, that of the file or the Trainer's own callback counts.

    Raises:
        ConfigError: If nothing can be built from it.
    """
    result = Examination()
    with tempfile.TemporaryDirectory() as folder, preserved(), quiet(), _collected(result.warnings):
        trainer, model, data, config = _built(name, Path(folder), result)
        if speedup is not None:
            config = config.with_speedup(speedup)
        plugin = HybridPredict(config=replace(config, enabled=True), log_dir=None)
        default = plugin.config == HybridConfig()
        result.paste = f"callbacks=[{'HybridPredict(speedup=1.5)' if default else repr(plugin)}]"
        result.left_out = [type(c).__name__ for c in trainer.callbacks if isinstance(c, _NEEDY)]
        kept = [c for c in trainer.callbacks if not isinstance(c, (*_SILENT, *_NEEDY))]
        trainer.callbacks = [plugin, *kept, _Probe(plugin, result)]
        trainer.loggers, trainer.num_sanity_val_steps = [DummyLogger()], 0
        try:
            with interruptible():
                trainer.fit(model, **data)
        except TrialEnd:
            pass
        except (UnsupportedSetupError, ConfigError) as error:
            result.refused = str(error)
        except MisconfigurationException as error:
            remedy = f"Lightning says: {error}"
            raise ConfigError("CONFIG", "a model and data to train on", name, remedy) from error
        result.overhead = plugin.ledger.correction_share
    return result


class _Probe(pl.Callback):
    """Ends the trial after one full step, and records the callback's plan."""

    def __init__(self, plugin: HybridPredict, result: Examination) -> None:
        self._plugin, self._result = plugin, result

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        engine = self._plugin.engine
        if engine is not None and self._plugin.ledger.full_steps:
            self._result.plan = overview(engine)
            _record_plain(engine, batch, self._result)
        if self._result.plan is not None or trainer.global_step > 0:
            raise TrialEnd


def _record_plain(engine: HybridEngine, batch: Any, result: Examination) -> None:
    """Record why the run would be plain training, and what would change that."""
    start = "fell back to plain training: "
    reasons = [event["reason"] for event in engine.ledger.events]
    result.plain = next((r.removeprefix(start) for r in reasons if r.startswith(start)), "")
    lack = shortage(engine)
    if not result.plain or lack is None:
        return
    ways = [f"max_overhead={lack.enough:g}", "updates={}"]
    if math.isfinite(lack.batches):
        larger = f"batches {lack.batches:.2g} times as large"
        tensors = (x for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim())
        if (samples := next((len(x) for x in tensors), None)) is not None:
            larger = f"batches of at least {math.ceil(samples * lack.batches):,} samples"
            larger += f" (now {samples:,})"
        ways.insert(0, larger)
    result.remedies = f"max_overhead={lack.limit:g} is too small; {', or '.join(ways)}"


def _built(
    name: str, folder: Path, result: Examination
) -> tuple[Any, Any, dict[str, Any], HybridConfig]:
    """Return Trainer, model, the data as arguments of ``fit``, and the configuration."""
    if is_file(name):
        make_run, config, _ = read_audit(name)
        arm = AuditArm(FULL, 0, config, folder, meter=None)
        return *arm.unpack(make_run(arm)), config.hybrid_config()
    built = _function(name)()
    if not isinstance(built, tuple) or len(built) not in (2, 3):
        expected = "a function that returns trainer, model and, if need be, the data"
        raise ConfigError("CONFIG", expected, type(built).__name__)
    trainer, model, data = (*built, None)[:3]
    log_dir = event_folder(trainer, "auto")
    result.run_log = str(log_dir or "none: set HybridPredict(log_dir=...) for one")
    configs = [c.config for c in trainer.callbacks if isinstance(c, HybridPredict)]
    # Lightning accepts a LightningDataModule in this place too.
    arguments = {} if data is None else {"train_dataloaders": data}
    return trainer, model, arguments, configs[0] if configs else HybridConfig()


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        imported = import_module(module)
    except ImportError as error:
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        raise ConfigError("CONFIG", "module:function", name, remedy) from error
    function = getattr(imported, attribute, None)
    if not callable(function):
        remedy = did_you_mean(attribute, vars(imported))
        raise ConfigError("CONFIG", f"a function of {module}", attribute, remedy)
    return function


@contextmanager
def _collected(messages: list[str]) -> Iterator[None]:
    """Collect the plug-in's warnings inside the block instead of showing them."""
    package, listener = logging.getLogger("hybrid_predict"), logging.Handler(logging.WARNING)
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    propagate, package.propagate = package.propagate, False
    package.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        texts = (str(warning.message) for warning in caught)
        messages += [text for text in texts if "HybridPredict" in text]
    finally:
        package.removeHandler(listener)
        package.propagate = propagate
