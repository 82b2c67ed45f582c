"""Measures one run inside the Trainer, and refuses what only shows there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from itertools import zip_longest
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from hybrid_predict.errors import ConfigError, UnsupportedSetupError

DIVERGED = "diverged"
NOT_FINITE = "metric not finite"
"""Why a run has no metric: its weights are not finite, or only the metric is not."""

_PAUSE = 0.2
"""Seconds between two calls of ``on_step``."""

_POINTS = 60
"""Approximate number of points of a curve."""


class Meter(pl.Callback):
    """Counts full steps and seconds of training, and measures the final weights.

    The last validation starts from ``seed``, so that it is the same for every arm. ``total_steps``
    is 0 until training starts, when ``on_start`` is called; ``seconds`` are without validation.

    ``entry`` is what the run's entry in the results file has of it. ``shapes`` and ``weights`` are
    digests of the parameters' form and of the initial values, ``rates`` the last learning rates
    over the highest ones, by group, except for schedules that follow a metric. Each point of a
    curve has full steps, seconds and a value: in ``curve`` the mean training loss since the point
    before, in ``metric_curve`` the metric, at last that of the final weights. The final ``metric``
    is None if there is a ``failure``.
    """

    def __init__(
        self,
        metric: str,
        seed: int = 0,
        on_step: Callable[[int, float], None] = lambda steps, loss: None,
    ) -> None:
        self.on_start: Callable[[pl.Trainer], None] = lambda trainer: None
        self._metric = metric
        self._seed = seed
        self._on_step = on_step
        self._last_call = -math.inf
        self._resumed: float | None = None
        self._not_validation: set[str] = set()
        self._peaks: list[float] = []
        self._losses: list[Tensor] = []
        self.full_steps = 0
        self.total_steps = 0
        self.seconds = 0.0
        self.entry: dict[str, Any] = {}

    def check_started(self) -> None:
        """Refuse a run without batches, which Lightning does not start to train."""
        if not self.total_steps:
            remedy = "Give training data of at least one batch, and leave limit_train_batches out."
            raise UnsupportedSetupError("Trainer", "batches to train on", "none", remedy)

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that the metric is logged, before training if anything is logged by then."""
        if trainer.callback_metrics:
            self._logged(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record what the run starts from, and start the clock."""
        if not trainer.enable_validation:
            remedy = "Give validation data, and a model whose validation_step logs it."
            expected = f"{self._metric!r} from a validation"
            raise ConfigError("metric", expected, "no validation", remedy)
        total = trainer.estimated_stepping_batches
        if not isinstance(total, int) or total < 1:
            remedy = "Set max_steps: the length of an epoch of these data is not known."
            raise UnsupportedSetupError("Trainer", "a known number of steps", total, remedy)
        self.total_steps = total
        self.entry = {"total_steps": total, **_digests(pl_module), "curve": [], "metric_curve": []}
        self._peaks = _rates(trainer)
        self.on_start(trainer)
        self._resumed = now(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a full step, at the end of an accumulation window."""
        if trainer.fit_loop._should_accumulate():
            return
        self.full_steps += 1
        self._peaks = [max(pair) for pair in self._rates_and_peaks(trainer)]
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._losses.append(loss.detach())
        if self.full_steps % max(1, self.total_steps // _POINTS) == 0 and self._losses:
            # Reads the device, so only at the points of the curve.
            self._pause(trainer)
            self._resumed = now(trainer)
            self._add_point("curve", float(torch.stack(self._losses).mean()))
            self._losses = []
        if perf_counter() - self._last_call >= _PAUSE:
            self._last_call = perf_counter()
            self._on_step(int(trainer.global_step), math.nan if loss is None else float(loss))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pause the clock."""
        if not trainer.sanity_checking:
            self._not_validation = self._not_validation or set(trainer.callback_metrics)
        self._pause(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the metric of a validation in training."""
        if self.total_steps and "steps" not in self.entry:
            self._add_point("metric_curve", self._logged(trainer))
            self._resumed = now(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the final weights."""
        self._pause(trainer)
        steps = int(trainer.global_step)
        if steps < self.total_steps:
            expected = f"a run of {self.total_steps} steps"
            remedy = "Leave out what ends it early."
            raise UnsupportedSetupError("Trainer", expected, steps, remedy)
        rates = [last / peak if peak else 1.0 for last, peak in self._rates_and_peaks(trainer)]
        self.entry |= {"steps": steps, "rates": rates, "metric": None, "failure": None}
        floats = (p for p in pl_module.parameters() if p.is_floating_point())
        if not all(bool(p.isfinite().all()) for p in floats):
            self.entry["failure"] = DIVERGED
            return
        # trainer.validate would set up model and data again, from other random states.
        trainer.callback_metrics.pop(self._metric, None)
        pl.seed_everything(self._seed, workers=True, verbose=False)
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        value = self._logged(trainer)
        trainer.training = True
        self.entry |= {"metric": value} if math.isfinite(value) else {"failure": NOT_FINITE}
        if (before := self.entry["metric_curve"]) and before[-1][0] == self.full_steps:
            before.pop()
        self._add_point("metric_curve", value)

    def _rates_and_peaks(self, trainer: pl.Trainer) -> list[tuple[float, float]]:
        return list(zip_longest(_rates(trainer), self._peaks, fillvalue=0.0))

    def _add_point(self, curve: str, value: float) -> None:
        known = value if math.isfinite(value) else None
        self.entry[curve].append([self.full_steps, self.seconds, known])

    def _logged(self, trainer: pl.Trainer) -> float:
        """Return the metric as validation has logged it."""
        logged = trainer.callback_metrics
        if self._metric not in logged:
            names = sorted(map(str, logged.keys() - self._not_validation))
            remedy = f"The validation logs {', '.join(names)}." if names else "It logs nothing."
            expected = "a name that the model logs in validation_step"
            raise ConfigError("metric", expected, self._metric, remedy)
        return float(logged[self._metric])

    def _pause(self, trainer: pl.Trainer) -> None:
        if self._resumed is not None:
            self.seconds += now(trainer) - self._resumed
            self._resumed = None


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
    """Return digests of the parameters' form, and of the values of parameters and buffers."""
    shapes = hashlib.sha256()
    weights = hashlib.sha256()
    for name, parameter in module.named_parameters():
        shapes.update(f"{name} {tuple(parameter.shape)} {parameter.dtype};".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        weights.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        weights.update(flat.view(torch.uint8).numpy().data)
    return {"shapes": shapes.hexdigest(), "weights": weights.hexdigest()}
