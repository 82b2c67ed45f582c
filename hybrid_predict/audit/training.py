"""Trains one arm or a trial, and measures it in the Trainer."""

from __future__ import annotations

import hashlib
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.config import Speedup
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.runs.trial import Trial, TrialEnd, now


class Observer:
    """Methods that are called while arms are trained; these do nothing."""

    def run_started(self, arm: str, seed: int, steps: int) -> None:
        """A run of ``steps``, full or predicted, begins."""

    def stepped(self, steps: int) -> None:
        """A run has done ``steps``, full or predicted; called after every full step."""

    def run_finished(self, run: Mapping[str, Any], trained: bool) -> None:
        """A run, its entry in the results file, is trained now or was finished before."""

    def candidate_finished(self, arm: str, speedup: Speedup, outcome: str) -> None:
        """A search has tested an arm at a speedup: verified, no saving, or undecided."""


class Meter(pl.Callback):
    """Measures an arm's training and its final weights, for the run's ``entry`` in the results.

    The last validation starts from the arm's seed, so that it is the same for every arm. ``check``
    gets what is known before training. In the entry ``shapes`` and ``weights`` are digests of the
    parameters' form and of the initial values, ``rates`` the last learning rates over the highest
    ones, by group, except for schedules that follow a metric. ``curve`` has full steps and the
    metric after every validation. ``seconds`` are without validation.
    """

    def __init__(
        self,
        arm: AuditArm,
        config: AuditConfig,
        check: Callable[[Mapping[str, Any]], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._arm = arm
        self._metric = config.metric
        self._check = check
        self._observer = observer or Observer()
        self._resumed: float | None = None
        self._peaks: list[float] = []
        self.entry: dict[str, Any] = {
            "arm": arm.name,
            "speedup": config.speedup_of(arm.name),
            "seed": arm.seed,
            "changes": dict(arm.changes),
            "lengths": arm.lengths,
            "total_steps": 0,
            "full_steps": 0,
            "seconds": 0.0,
            "curve": [],
            "metric": None,
            "failure": None,
        }

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that the metric is logged, before training if anything is logged by then."""
        if trainer.callback_metrics:
            self._logged(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse what only shows here, record what the run starts from, and start the clock."""
        others = [c for c in trainer.callbacks if c is not self._arm.hybrid]  # type: ignore[attr-defined]
        if any(isinstance(c, (EarlyStopping, HybridPredict)) for c in others):
            remedy = "Leave it out: arms have the callback of the audit, and train to their end."
            got = list(map(type, others))
            raise ConfigError("callbacks", "no EarlyStopping and no HybridPredict", got, remedy)
        if not trainer.enable_validation:
            remedy = "Give validation data, and a model whose validation_step logs it."
            expected = f"{self._metric!r} from a validation"
            raise ConfigError("metric", expected, "no validation", remedy)
        total = trainer.estimated_stepping_batches
        if not isinstance(total, int) or total < 1:
            remedy = "Set max_steps: the length of an epoch of these data is not known."
            raise UnsupportedSetupError("Trainer", "a known number of steps", total, remedy)
        self.entry |= {"total_steps": total, **_digests(pl_module)}
        self._peaks = _rates(trainer)
        if self._check is not None:
            self._check(self.entry)
        self._observer.run_started(self._arm.name, self._arm.seed, total)
        self._resumed = now(trainer.strategy.root_device)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a full step, at the end of an accumulation window."""
        if trainer.fit_loop._should_accumulate():
            return
        self.entry["full_steps"] += 1
        self._peaks = list(map(max, self._peaks, _rates(trainer)))
        self._observer.stepped(int(trainer.global_step))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pause the clock."""
        self._pause(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the metric of a validation in training."""
        if self.entry["total_steps"] and "steps" not in self.entry:
            self._add_point(trainer)
            self._resumed = now(trainer.strategy.root_device)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the final weights."""
        self._pause(trainer)
        steps = int(trainer.global_step)
        if steps < self.entry["total_steps"]:
            expected = f"a run of {self.entry['total_steps']} steps"
            remedy = "Leave out what ends it early."
            raise UnsupportedSetupError("Trainer", expected, steps, remedy)
        by_group = zip(_rates(trainer), self._peaks, strict=False)
        rates = [last / peak if peak else 1.0 for last, peak in by_group]
        self.entry |= {"steps": steps, "rates": rates}
        floats = (p for p in pl_module.parameters() if p.is_floating_point())
        if not all(bool(p.isfinite().all()) for p in floats):
            self.entry["failure"] = "diverged"
            return
        # trainer.validate would set up model and data again, from other random states.
        trainer.callback_metrics.pop(self._metric, None)
        pl.seed_everything(self._arm.seed, workers=True, verbose=False)
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        self.entry["metric"] = self._add_point(trainer)
        if self.entry["metric"] is None:
            self.entry["failure"] = "metric not finite"
        trainer.training = True

    def _add_point(self, trainer: pl.Trainer) -> float | None:
        logged = self._logged(trainer)
        value = logged if math.isfinite(logged) else None
        self.entry["curve"].append([self.entry["full_steps"], value])
        return value

    def _logged(self, trainer: pl.Trainer) -> float:
        logged = trainer.callback_metrics
        if self._metric not in logged:
            expected = "a name that the model logs in validation_step"
            remedy = f"The run logs {', '.join(sorted(map(str, logged))) or 'nothing'}."
            raise ConfigError("metric", expected, self._metric, remedy)
        return float(logged[self._metric])

    def _pause(self, trainer: pl.Trainer) -> None:
        if self._resumed is not None:
            self.entry["seconds"] += now(trainer.strategy.root_device) - self._resumed
            self._resumed = None


class LightningTrial(pl.Callback):
    """Makes a trial of a Lightning Trainer's run; ``plugin`` is the callback that it tries."""

    def __init__(self, plugin: HybridPredict) -> None:
        self.trial = Trial()
        self._plugin = plugin

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the clock, after a validation of the epoch before."""
        self.trial.resume(trainer.strategy.root_device)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the plan and the time of a full step that ends with this batch."""
        engine = self._plugin.engine
        if engine is not None:
            self.trial.step(engine, trainer.strategy.root_device)
        elif trainer.global_step:  # the callback has nothing to do
            raise TrialEnd


def _rates(trainer: pl.Trainer) -> list[float]:
    """Return the learning rates of the groups whose schedule does not follow a metric."""
    following = [c.scheduler.optimizer for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    chosen = [o for o in trainer.optimizers if not any(o is other for other in following)]
    return [float(group["lr"]) for optimizer in chosen for group in optimizer.param_groups]


def _digests(module: torch.nn.Module) -> dict[str, str]:
    forms = [f"{name} {tuple(p.shape)} {p.dtype}" for name, p in module.named_parameters()]
    shapes = hashlib.sha256(";".join(forms).encode())
    weights = hashlib.sha256()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        weights.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        weights.update(flat.view(torch.uint8).numpy().data)
    return {"shapes": shapes.hexdigest(), "weights": weights.hexdigest()}


def fit_arm(arm: AuditArm, make_run: MakeRun, meter: Meter, *further: pl.Callback) -> None:
    """Train what ``make_run`` builds, from the arm's seed, with callbacks after the user's."""
    pl.seed_everything(arm.seed, workers=True, verbose=False)
    trainer, model, loaders = arm.unpack(make_run(arm))
    arm.check_shortened()
    trainer.callbacks += [meter, *further]  # type: ignore[attr-defined]
    fit(trainer, model, loaders)
    if not meter.entry["total_steps"]:
        remedy = "Give training data of at least one batch, and leave limit_train_batches out."
        raise UnsupportedSetupError("Trainer", "batches to train on", "none", remedy)


def fit(trainer: pl.Trainer, model: pl.LightningModule, loaders: Sequence[Any]) -> None:
    """Train a model; ``loaders`` are the first arguments of ``Trainer.fit`` after it.

    Ctrl-C raises KeyboardInterrupt, where Lightning exits and ignores further Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(model, *loaders)
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):  # the model's own
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
