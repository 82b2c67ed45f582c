"""Tries the callback in a Trainer of Lightning, which is given away."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybrid_predict.errors import MissingExtraError, UnsupportedSetupError

try:
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
    return examine_built(built, speedup)


class Watching(LightningTrial):
    """A trial that notes what validation logs, in one batch before it, and then leaves it out."""

    logged: Sequence[str] = ()

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the names."""
        self.logged = list(trainer.callback_metrics)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave out validation, so that schedules that follow it stand still."""
        trainer.limit_val_batches = 0
        for each in trainer.lr_scheduler_configs:
            each.strict = False


def examine_built(built: tuple[Any, ...], speedup: Speedup | None) -> Examined:
    """Examine a Trainer, its model and, if there are more, its data."""
    trainer, model, *data = built
    if len(data) == 1 and isinstance(data[0], tuple):
        data = list(data[0])  # loaders for training and validation
    callbacks = trainer.callbacks
    plugin = tried(HybridPredict, callbacks, speedup)
    trying = Watching(plugin)
    kept = [c for c in callbacks if not isinstance(c, _LEFT_OUT)]
    trainer.callbacks = [plugin, *kept, trying]
    trainer.loggers = [DummyLogger()]
    trainer.num_sanity_val_steps = 1
    try:
        with suppress(TrialEnd):
            fit(trainer, model, data[:2])
    except UnsupportedSetupError as error:
        trying.trial.plain = str(error)
    trainer.callbacks = callbacks
    judged = _judged(list(monitored(trainer, trying.logged)), trying.logged)
    early = any(isinstance(c, known.EarlyStopping) for c in callbacks)
    end = "; EarlyStopping, which this trial leaves out, may end the run sooner" if early else ""
    return trying.trial, plugin, f"{judged}{end}"


def _judged(judging: Sequence[str], logged: Sequence[str]) -> str:
    """Tell by which metric a run is judged, and what to change if validation logs none."""
    if seen := [name for name in judging if name in logged]:
        return f"is judged by {seen[0]}"
    if not logged:  # code may log nothing in the sanity check, where the names are read
        return f"is judged by {judging[0]}, if your validation logs it, and else goes unnoticed"
    return (
        f"goes unnoticed: validation logs {', '.join(logged)}, not {judging[0]}. Add "
        f'ModelCheckpoint(monitor={logged[0]!r}, mode="min"), or "max" if more of it is better'
    )
