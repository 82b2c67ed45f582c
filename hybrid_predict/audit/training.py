"""Trains one arm or a trial, measures it in the Trainer, and restores what training changes."""

from __future__ import annotations

import hashlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities.seed import isolate_rng

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.config import Speedup
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.policy.policy import NOTHING
from hybrid_predict.runs.overview import Overview, added_cost, overview
from hybrid_predict.updates.spectral import EARLY, SEEN_EVERY

DIVERGED = "diverged"
NOT_FINITE = "metric not finite"
"""Why a run has no metric: its weights are not finite, or only the metric is not."""

_VARIABLES = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
"""What ``seed_everything`` sets in the environment."""


_FIRST = 3
"""Full steps that are not timed: they count operations, allocate and fill caches. If the epoch is
long enough, more are left out."""

_LEAST = 2
_MOST = SEEN_EVERY
"""Numbers of full steps that are timed with the callback, and as many without it."""


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
    """Counts full steps and seconds of an arm's training, and measures the final weights.

    The last validation starts from the arm's seed, so that it is the same for every arm.
    ``on_start`` gets ``entry`` with what is known before training. ``total_steps`` is 0 until then;
    ``seconds`` are without validation.

    ``entry`` is what the run's entry in the results file has of it. ``shapes`` and ``weights`` are
    digests of the parameters' form and of the initial values, ``rates`` the last learning rates
    over the highest ones, by group, except for schedules that follow a metric. ``curve`` has full
    steps and the metric after every validation, at last that of the final weights. The final
    ``metric`` is None if there is a ``failure``.
    """

    def __init__(
        self,
        arm: AuditArm,
        metric: str,
        on_start: Callable[[dict[str, Any]], None] = lambda entry: None,
        on_step: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self._arm = arm
        self._metric = metric
        self._on_start = on_start
        self._on_step = on_step
        self._resumed: float | None = None
        self._peaks: list[float] = []
        self.full_steps = 0
        self.total_steps = 0
        self.seconds = 0.0
        self.entry: dict[str, Any] = {"changes": dict(arm.changes), "lengths": arm.lengths}

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
        self.total_steps = total
        self.entry |= {"total_steps": total, **_digests(pl_module), "curve": []}
        self._peaks = _rates(trainer)
        self._on_start(self.entry)
        self._resumed = now(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a full step, at the end of an accumulation window."""
        if trainer.fit_loop._should_accumulate():
            return
        self.full_steps += 1
        self._peaks = list(map(max, self._peaks, _rates(trainer)))
        self._on_step(int(trainer.global_step))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pause the clock."""
        self._pause(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the metric of a validation in training."""
        if self.total_steps and "steps" not in self.entry:
            self._add_point(self._logged(trainer))
            self._resumed = now(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the final weights."""
        self._pause(trainer)
        steps = int(trainer.global_step)
        if steps < self.total_steps:
            expected = f"a run of {self.total_steps} steps"
            remedy = "Leave out what ends it early."
            raise UnsupportedSetupError("Trainer", expected, steps, remedy)
        by_group = zip(_rates(trainer), self._peaks, strict=False)
        rates = [last / peak if peak else 1.0 for last, peak in by_group]
        self.entry |= {"steps": steps, "rates": rates, "metric": None, "failure": None}
        floats = (p for p in pl_module.parameters() if p.is_floating_point())
        if not all(bool(p.isfinite().all()) for p in floats):
            self.entry["failure"] = DIVERGED
            return
        # trainer.validate would set up model and data again, from other random states.
        trainer.callback_metrics.pop(self._metric, None)
        pl.seed_everything(self._arm.seed, workers=True, verbose=False)
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        value = self._logged(trainer)
        trainer.training = True
        self.entry |= {"metric": value} if math.isfinite(value) else {"failure": NOT_FINITE}
        self._add_point(value)

    def _add_point(self, value: float) -> None:
        self.entry["curve"].append([self.full_steps, value if math.isfinite(value) else None])

    def _logged(self, trainer: pl.Trainer) -> float:
        logged = trainer.callback_metrics
        if self._metric not in logged:
            expected = "a name that the model logs in validation_step"
            remedy = f"The run logs {', '.join(sorted(map(str, logged))) or 'nothing'}."
            raise ConfigError("metric", expected, self._metric, remedy)
        return float(logged[self._metric])

    def _pause(self, trainer: pl.Trainer) -> None:
        if self._resumed is not None:
            self.seconds += now(trainer) - self._resumed
            self._resumed = None


class TrialEnd(Exception):
    """Ends a trial; never leaves the package."""


class Trial(pl.Callback):
    """Times a few full steps of the first epoch, and ends training before its validation.

    It also ends where the run would be plain training: ``plain`` says why. Time in the data loader
    counts. ``plan`` is the callback's plan after one full step, ``cost`` what correcting costs, and
    ``shortfall`` why fewer predicted steps are planned than asked for.
    """

    def __init__(self, plugin: HybridPredict) -> None:
        self.plan: Overview | None = None
        self.plain = ""
        self.cost = ""
        self.shortfall = ""
        self._plugin = plugin
        self._first = _FIRST
        self._most = _MOST
        self._times: list[float] = []
        self._last = 0.0

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Mean seconds of a full step without and with the callback; None if too few fit."""
        helped = self._times[self._first : self._first + self._most]
        plain = self._times[self._first + self._most :]
        return (fmean(plain), fmean(helped)) if len(plain) >= _LEAST else None

    @property
    def seconds_per_step(self) -> float:
        """Seconds of a full step of plain training, as near as the trial came to one."""
        first = self._first
        timed = self._times[first + self._most :] or self._times[first:] or self._times
        return min(timed, default=0.0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Limit the steps of a kind, so that both fit into one epoch."""
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        if steps > EARLY + 1 + 2 * _MOST:  # the first corrections take longer than others
            self._first = EARLY + 1
        self._most = int(max(_LEAST, min(_MOST, (steps - self._first) // 2)))
        self._last = now(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take the plan and the time of a full step that ends with this batch."""
        engine = self._plugin.engine
        if self._plugin.ledger.full_steps > len(self._times):
            self._times.append(now(trainer) - self._last)
            self._last = now(trainer)
            if engine is not None and len(self._times) == 1:
                self.plan = overview(engine)
                self.cost = added_cost(engine).removeprefix("; ")
                self.shortfall = engine.schedule.shortfall
                idle = NOTHING if engine._state.groups.dormant else ""
                self.plain = engine.ledger.fell_back.removeprefix(FELL_BACK) or idle
            if engine is not None and len(self._times) == self._first + self._most:
                engine.detach()
        idle_callback = self.plan is None and trainer.global_step > 0
        timed = len(self._times) >= self._first + 2 * self._most
        if timed or trainer.is_last_batch or self.plain or idle_callback:
            raise TrialEnd


def now(trainer: pl.Trainer) -> float:
    """Return seconds of a clock, after the device has done what it was given."""
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return perf_counter()


def _rates(trainer: pl.Trainer) -> list[float]:
    """Return the learning rates of the groups whose schedule does not follow a metric."""
    following = [c.scheduler.optimizer for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    chosen = [o for o in trainer.optimizers if not any(o is other for other in following)]
    return [float(group["lr"]) for optimizer in chosen for group in optimizer.param_groups]


def _digests(module: torch.nn.Module) -> dict[str, str]:
    shapes = hashlib.sha256()
    weights = hashlib.sha256()
    for name, parameter in module.named_parameters():
        shapes.update(f"{name} {tuple(parameter.shape)} {parameter.dtype};".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        weights.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        weights.update(flat.view(torch.uint8).numpy().data)
    return {"shapes": shapes.hexdigest(), "weights": weights.hexdigest()}


def fit_arm(arm: AuditArm, make_run: MakeRun, meter: Meter, *further: pl.Callback) -> None:
    """Train what ``make_run`` builds, from the arm's seed, with callbacks after the user's."""
    pl.seed_everything(arm.seed, workers=True, verbose=False)
    trainer, model, data = arm.unpack(make_run(arm))
    trainer.callbacks += [meter, *further]  # type: ignore[attr-defined]
    fit(trainer, model, data)
    if not meter.total_steps:
        remedy = "Give training data of at least one batch, and leave limit_train_batches out."
        raise UnsupportedSetupError("Trainer", "batches to train on", "none", remedy)


def fit(trainer: pl.Trainer, model: pl.LightningModule, data: Mapping[str, Any]) -> None:
    """Train a model; ``data`` are arguments of ``Trainer.fit``.

    Ctrl-C raises KeyboardInterrupt, where Lightning exits and ignores further Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(model, **data)
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):  # the model's own
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


@contextmanager
def preserved() -> Iterator[None]:
    """Restore random states, and Lightning's variables of seeds, after the block."""
    variables = {name: os.environ.pop(name, None) for name in _VARIABLES}
    try:
        with isolate_rng():
            yield
    finally:
        for name, text in variables.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text
