"""Tries the callback in a Trainer of Lightning, which is given away."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from hybrid_predict.errors import ConfigError, MissingExtraError, UnsupportedSetupError

try:
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import callbacks as known
    from lightning.pytorch.loggers.logger import DummyLogger
except ImportError as error:
    raise MissingExtraError("The examination of a Lightning Trainer", "lightning") from error

from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.file import read_audit
from hybrid_predict.audit.training import LightningTrial, fit
from hybrid_predict.config import Speedup
from hybrid_predict.doctor.examination import Examined, tried
from hybrid_predict.integrations.lightning import HybridPredict, monitored
from hybrid_predict.runs.evidence import HYBRID
from hybrid_predict.runs.trial import TrialEnd

_LEFT_OUT = (
    known.ProgressBar,
    known.ModelSummary,
    known.Checkpoint,
    known.OnExceptionCheckpoint,
    known.EarlyStopping,
    HybridPredict,
)
"""Callbacks that the trial leaves out; its checkpoint could replace one that counts."""


def examine_file(name: str, folder: Path, speedup: Speedup | None) -> Examined:
    """Examine what an audit's YAML file describes."""
    make_run, config, _ = read_audit(name)
    arm = AuditArm(HYBRID, 0, folder, config)
    built = make_run(arm)
    arm.unpack(built)  # refuses what cannot be tried
    return examine_built(name, built, speedup)


def examine_built(name: str, built: tuple[Any, ...], speedup: Speedup | None) -> Examined:
    """Examine a Trainer, its model and, if there are more, its data."""
    trainer, model, *data = built
    plugin = tried(HybridPredict, trainer.callbacks, speedup)
    trying = LightningTrial(plugin)
    kept = [c for c in trainer.callbacks if not isinstance(c, _LEFT_OUT)]
    trainer.callbacks = [plugin, *kept, trying]
    trainer.loggers = [DummyLogger()]
    judged = f"{next(iter(monitored(trainer)))}, if your model logs it in validation"
    trainer.num_sanity_val_steps = trainer.limit_val_batches = 0
    try:
        with suppress(TrialEnd):
            fit(trainer, model, data[:2])
    except UnsupportedSetupError as error:
        trying.trial.plain = str(error)
    except MisconfigurationException as error:
        remedy = f"Lightning says: {error}."
        raise ConfigError("CONFIG", "what Lightning can train", name, remedy) from error
    return trying.trial, plugin, judged
