"""What the callback would do with a Trainer and a model, from a few full steps of training."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks as known
from lightning.pytorch.loggers.logger import DummyLogger

from hybrid_predict.audit.arm import AuditArm
from hybrid_predict.audit.file import is_file, read_audit
from hybrid_predict.audit.meter import TrialEnd
from hybrid_predict.audit.training import fit, preserved
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError, UnsupportedSetupError, did_you_mean
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.integrations.lightning_screen import event_folder
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.policy import NOTHING
from hybrid_predict.report.overview import Overview, added_cost, overview
from hybrid_predict.report.slow_run import StepSeconds, describe_duration
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import collected, quiet

_SILENT = (
    known.ProgressBar,
    known.ModelSummary,
    known.Checkpoint,
    known.OnExceptionCheckpoint,
    HybridPredict,
)
"""Callbacks that the trial leaves out; its checkpoint could replace one that counts."""

_FIRST = 3
"""Full steps before the clock starts: they count operations, allocate and fill caches."""

_LEAST = 2
_MOST = 20
"""Smallest and largest number of full steps that are timed with the callback, and without it."""

_PATIENCE = 10.0
"""Seconds after which no further step of a kind is timed."""


def examine(
    name: str, speedup: float | Literal["auto"] | None = None
) -> tuple[bool, list[tuple[str, str]]]:
    """Train a few full steps of what a file or a function builds, with the callback.

    Writes nothing, and restores random states. ``name`` is an audit's YAML file, or
    ``module:function`` for a function that returns the Trainer, the model and, unless the model has
    its own, the data. Without ``speedup``, that of the file or the Trainer's own callback counts.

    Returns:
        Whether the callback would change the training, and findings as titles and texts.

    Raises:
        ConfigError: If nothing can be built from it.
    """
    messages: list[str] = []
    with tempfile.TemporaryDirectory() as folder, preserved(), quiet(), collected(messages):
        trainer, model, data, config, run_log = _built(name, Path(folder))
        if speedup is not None:
            config = config.with_speedup(speedup)
        plugin = HybridPredict(config=replace(config, enabled=True), log_dir=None)
        kept = [c for c in trainer.callbacks if not isinstance(c, _SILENT)]
        trial = _Trial(plugin)
        trainer.callbacks = [plugin, *kept, trial]
        trainer.loggers = [DummyLogger()]
        trainer.num_sanity_val_steps = trainer.limit_val_batches = 0
        try:
            with suppress(TrialEnd):
                fit(trainer, model, data)
        except (UnsupportedSetupError, ConfigError) as error:
            if isinstance(error, ConfigError) and error.argument in ("data", "Trainer"):
                raise  # not refused by the callback
            return False, [("works", f"no. {error}")]
    if trial.plan is None:
        return False, [("works", "no. Training did not start.")]
    # What made the run fall back is said in the first line.
    further = [("warning", text) for text in messages if not trial.plain or trial.plain not in text]
    if trial.plain:
        return False, [("works", f"no, the run would be plain training: {trial.plain}"), *further]
    findings = [
        ("works", "yes"),
        *_planned(trial.plan, trial.cost),
        ("seconds", _seconds(trial.seconds, trial.plan)),
        ("run log", run_log),
    ]
    if any(part.corrected or part.predicted for part in trial.plan.parts):
        default = plugin.config == HybridConfig()
        callback = "HybridPredict(speedup=1.5)" if default else repr(plugin)
        further.append(("paste", f"Trainer(..., callbacks=[{callback}])"))
    return True, [*findings, *further]


def _planned(plan: Overview, cost: str) -> list[tuple[str, str]]:
    """Return what the callback would correct, predict and leave alone, and at what cost."""
    corrected = ", ".join(str(part) for part in plan.parts if part.corrected)
    predicted = ", ".join(str(part) for part in plan.parts if part.predicted)
    left = [str(part) for part in plan.parts if not (part.corrected or part.predicted)]
    why = "; ".join(plan.left_out) or "none is of a kind that is corrected"
    while_ = "last" if plan.paced else "have skill"
    count = f"up to {plan.predicted:,} of {plan.steps:,} steps, made while forecasts {while_}"
    rate = 'only a run with speedup="auto" can tell whether it is far too small'
    if plan.paced:
        rate = "the run says at its end if it could be much larger"
    return [
        ("corrected", corrected or f"nothing: {why}"),
        ("predicted", f"{predicted}: {count}" if plan.predicted else "nothing"),
        ("left alone", ", ".join([*left, *plan.left_out]) or "nothing"),
        ("plan", f"{plan.plan.removeprefix('plan: ')}; warm-up {plan.warmup}"),
        ("learning rate", rate),
        ("memory", plan.memory),
        ("overhead", cost or "not counted"),
    ]


def _seconds(seconds: StepSeconds | None, plan: Overview) -> str:
    """Return how long the planned run would take, beside plain training."""
    if seconds is None:
        return "not measured: the training data has too few batches"
    return f"about, from a few steps: {describe_duration(seconds, plan)}"


class _Trial(pl.Callback):
    """Ends a trial once it has timed full steps with the callback, then without it.

    The trial also ends with the last batch of an epoch, before validation and checkpoints, and
    where the run would be plain training: ``plain`` says why. Time in the data loader counts.
    ``plan`` is the callback's plan after one full step, ``cost`` what correcting costs.
    """

    def __init__(self, plugin: HybridPredict) -> None:
        self.plan: Overview | None = None
        self.plain = ""
        self.cost = ""
        self._plugin = plugin
        self._with: list[float] = []
        self._without: list[float] = []
        self._steps = 0
        self._most = _MOST
        self._last = 0.0

    @property
    def seconds(self) -> StepSeconds | None:
        """Least seconds of a full step, as other work only adds; None if too few fit an epoch."""
        if min(len(self._without), len(self._with)) < _LEAST:
            return None
        return StepSeconds(min(self._without), min(self._with))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Limit the steps of a kind, so that both fit into one epoch."""
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        self._most = int(max(_LEAST, min(_MOST, (steps - _FIRST) // 2)))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the plan and the time of a full step that ends with this batch."""
        taken = self._plugin.ledger.full_steps
        if self.plan is None and taken:
            self._take_plan()
        if self.plain or (self.plan is None and trainer.global_step > 0):
            raise TrialEnd
        if taken > self._steps:
            self._steps = taken
            self._take_time(trainer.strategy.root_device)
        if trainer.is_last_batch or self._ended(self._without):
            raise TrialEnd

    def _take_plan(self) -> None:
        engine = self._plugin.engine
        if engine is not None:
            self.plan = overview(engine)
            self.cost = added_cost(engine).removeprefix("; ")
            idle = NOTHING if engine._state.groups.dormant else ""
            self.plain = engine.ledger.fell_back.removeprefix(FELL_BACK) or idle

    def _take_time(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = perf_counter()
        if self._steps > _FIRST:
            block = self._without if self._ended(self._with) else self._with
            block.append(now - self._last)
            if block is self._with and self._ended(block) and self._plugin.engine is not None:
                self._plugin.engine.detach()
        self._last = perf_counter()

    def _ended(self, block: list[float]) -> bool:
        return len(block) >= self._most or (len(block) >= _LEAST and sum(block) > _PATIENCE)


def _built(name: str, folder: Path) -> tuple[Any, Any, dict[str, Any], HybridConfig, str]:
    """Return Trainer, model, data as arguments of ``fit``, configuration, and the log's place."""
    if is_file(name):
        make_run, config, _ = read_audit(name)
        arm = AuditArm(FULL, 0, config, folder, meter=None)
        place = "in the folder of a TensorBoard or CSV logger"
        return *arm.unpack(make_run(arm)), config.hybrid_config(), place
    built = _function(name)()
    if not isinstance(built, tuple) or len(built) not in (2, 3):
        expected = "a function that returns trainer, model and, if need be, training data"
        got = f"{len(built)} values" if isinstance(built, tuple) else type(built).__name__
        raise ConfigError("CONFIG", expected, got)
    trainer, model, data = (*built, None)[:3]
    if isinstance(data, tuple):  # Lightning would train on all of its loaders at once
        expected = "training data alone as the third value: one loader, or a data module"
        raise ConfigError("CONFIG", expected, f"a tuple of {len(data)}")
    if not (hasattr(trainer, "fit") and hasattr(model, "training_step")):
        expected = "a Lightning Trainer and a LightningModule from the function, in this order"
        got = f"{type(trainer).__name__} and {type(model).__name__}"
        raise ConfigError("CONFIG", expected, got)
    place = str(event_folder(trainer, "auto") or "none: set HybridPredict(log_dir=...) for one")
    configs = [c.config for c in trainer.callbacks if isinstance(c, HybridPredict)]
    # Lightning accepts a LightningDataModule in this place too.
    arguments = {} if data is None else {"train_dataloaders": data}
    return trainer, model, arguments, configs[0] if configs else HybridConfig(), place


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        imported = import_module(module)
    except (ImportError, TypeError, ValueError) as error:  # of names such as ":function"
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        raise ConfigError("CONFIG", "module:function", name, remedy) from error
    function = getattr(imported, attribute, None)
    if not callable(function):
        remedy = did_you_mean(attribute, vars(imported))
        raise ConfigError("CONFIG", f"a function of {module}", attribute, remedy)
    return function
