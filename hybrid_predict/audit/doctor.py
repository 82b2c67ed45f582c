"""What the callback would do with a Trainer and a model, from a few full steps of training."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from lightning.pytorch import callbacks as known
from lightning.pytorch.loggers.logger import DummyLogger

from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.file import read_audit
from hybrid_predict.audit.training import Trial, TrialEnd, fit, preserved
from hybrid_predict.config import HybridConfig, Speedup
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.lightning import HybridPredict, monitored
from hybrid_predict.ledger import duration
from hybrid_predict.policy.overfitting import REMEDY
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.overview import Overview
from hybrid_predict.runs.runtime import collected, quiet

_SILENT = (
    known.ProgressBar,
    known.ModelSummary,
    known.Checkpoint,
    known.OnExceptionCheckpoint,
    HybridPredict,
)
"""Callbacks that the trial leaves out; its checkpoint could replace one that counts."""

Findings = list[tuple[str, str]]
"""Titles and texts."""


def examine(name: str, speedup: Speedup | None = None) -> tuple[bool, Findings]:
    """Train a few full steps of what a file or a function builds, with the callback.

    Writes nothing, and restores random states. ``name`` is an audit's YAML file, or
    ``module:function`` for a function that returns the Trainer, the model and, unless the model has
    its own, the data. Without ``speedup``, that of the file or the Trainer's own callback counts.

    Returns:
        Whether the callback would change the training, and findings.

    Raises:
        ConfigError: If nothing can be built from it.
    """
    messages: list[str] = []
    with tempfile.TemporaryDirectory() as folder, preserved(), quiet(), collected(messages):
        trainer, model, data, config = _built(name, Path(folder))
        if speedup is not None:
            config = config.with_speedup(speedup)
        plugin = HybridPredict(config=replace(config, enabled=True), log_dir=None)
        trial = Trial(plugin)
        kept = [c for c in trainer.callbacks if not isinstance(c, _SILENT)]
        trainer.callbacks = [plugin, *kept, trial]
        trainer.loggers = [DummyLogger()]
        metric = next(iter(monitored(trainer)))
        trainer.num_sanity_val_steps = trainer.limit_val_batches = 0
        try:
            with suppress(TrialEnd):
                fit(trainer, model, data)
        except UnsupportedSetupError as error:
            return False, [("works", f"no. {error}")]
    # What made the run fall back is said in the first line.
    further = [("warning", text) for text in messages if not trial.plain or trial.plain not in text]
    if trial.plain:
        return False, [("works", f"no, the run would be plain training: {trial.plain}"), *further]
    if trial.plan is None:
        return False, [("works", "no. Training did not start."), *further]
    callback = "HybridPredict(speedup=1.5)" if plugin.config == HybridConfig() else repr(plugin)
    told = trial.plan.described()
    return True, [
        ("corrects", told.pop("corrects")),
        *_times(trial.seconds, trial.plan),
        ("paste", f"Trainer(..., callbacks=[{callback}])"),
        *further,
        *told.items(),
        ("overhead", trial.cost or "not counted"),
        ("overfitting", f"is judged by {metric}, if your model logs it in validation; {REMEDY}"),
    ]


def _times(seconds: tuple[float, float] | None, plan: Overview) -> Findings:
    """Tell the seconds of a full step with the callback, how long the run would take, and more."""
    if seconds is None:
        return [("full step", "not measured: the training data has too few batches")]
    plain, helped = seconds
    most = helped / plain
    least = most * (plan.steps - plan.predicted) / plan.steps
    times = f"{least:.2f} to {most:.2f} times" if plan.predicted else f"{most:.2f} times"
    found = [
        ("full step", f"takes {duration(helped)} in place of {duration(plain)} (a few were timed)"),
        ("run", f"takes {times} as long as plain training of as many steps"),
    ]
    if least > 1.0:
        text = (
            "full steps are too short here to save time; larger batches make them longer, or "
            "train fewer steps, if corrected updates reach your quality in them"
        )
        found.append(("change", text))
    return found


def _built(name: str, folder: Path) -> tuple[Any, Any, dict[str, Any], HybridConfig]:
    """Return Trainer, model, data as arguments of ``fit``, and configuration."""
    if ":" not in name or Path(name).exists():
        make_run, config, _ = read_audit(name)
        arm = AuditArm(FULL, 0, folder, config)
        return *arm.unpack(make_run(arm)), config.hybrid_config()
    try:
        function = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        raise ConfigError("CONFIG", "module:function", name, remedy) from error
    if not callable(function):
        raise ConfigError("CONFIG", "module:function", f"{name}, no function")
    built = function()
    valid = isinstance(built, tuple) and len(built) in (2, 3)
    if not (valid and hasattr(built[0], "fit") and hasattr(built[1], "training_step")):
        expected = (
            "a function that returns a Lightning Trainer, its model and, if need be, the data"
        )
        got = list(map(type, built)) if isinstance(built, tuple) else type(built)
        raise ConfigError("CONFIG", expected, got)
    trainer, model, data = (*built, None)[:3]
    configs = [c.config for c in trainer.callbacks if isinstance(c, HybridPredict)]
    # Lightning accepts a LightningDataModule in this place too.
    arguments = {} if data is None else {"train_dataloaders": data}
    return trainer, model, arguments, configs[0] if configs else HybridConfig()
