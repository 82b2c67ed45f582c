"""Measures one run from inside the Trainer, and refuses what shows itself only there."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from itertools import zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybrid_predict.errors import ConfigError, UnsupportedSetupError

if TYPE_CHECKING:
    import lightning.pytorch as pl

OnStart = Callable[[], None]
OnStep = Callable[[int, float], None]


DIVERGED, NOT_FINITE = "diverged", "metric not finite"
"""Why a run has no metric: its weights are not finite, or they are and the metric is not."""


class EnoughError(Exception):
    """Ends a trial run from inside; never leaves the package."""


class Meter:
    """Counts full steps and the seconds of training, and measures what the run ends with.

    Args:
        metric: Metric that validation has to log.
        seed: Random states of the last validation, so that it is the same for every arm.
        on_start: Is called when training starts, and what it starts from is known.
        on_step: Is told full steps and training loss, about five times per second.
        limit: End by :class:`EnoughError` after so many full steps; None trains to the end.

    Attributes:
        full_steps: Full steps so far.
        total_steps: Steps of the whole run; 0 until training starts.
        steps: Those that it ended with.
        shapes: Digest of names, shapes and dtypes of the parameters.
        weights: Digest of the initial parameters and buffers.
        rates: Last learning rate over the highest one, per parameter group whose schedule depends
            on steps alone.
        value: The metric of the final weights; None if there is none.
        failure: Why there is none: :data:`DIVERGED` or :data:`NOT_FINITE`.
        seconds: Seconds of training, validation left out.
        marks: Those seconds after every full step, if there is a limit.
        curve: Full steps and the mean training loss up to there since the last entry, about
            ``POINTS`` of them.
        metric_curve: Full steps and the metric at each validation in training; None where it is
            not finite.
    """

    PAUSE = 0.2
    POINTS = 60

    def __init__(
        self,
        metric: str,
        seed: int = 0,
        on_start: OnStart = lambda: None,
        on_step: OnStep = lambda full_steps, loss: None,
        limit: int | None = None,
    ) -> None:
        self._metric = metric
        self._seed = seed
        self._on_start = on_start
        self._on_step = on_step
        self._limit = limit
        self._resumed: float | None = None
        self._told = -math.inf
        self._training = False
        self._others: set[str] | None = None
        self._peaks: list[float] = []
        self.full_steps = 0
        self.total_steps = 0
        self.steps = 0
        self.shapes = self.weights = ""
        self.rates: list[float] = []
        self.value: float | None = None
        self.failure: str | None = None
        self.seconds = 0.0
        self.marks: list[float] = []
        self.curve: list[list[float | None]] = []
        self.metric_curve: list[list[float | None]] = []
        self._losses: list[Tensor] = []

    def callback(self) -> pl.Callback:
        """The callback that measures; it comes last."""
        from lightning.pytorch.callbacks import LambdaCallback

        return LambdaCallback(
            on_fit_start=self._fit_start,
            on_sanity_check_end=self._sanity_check_end,
            on_train_start=self._train_start,
            on_train_batch_end=self._batch_end,
            on_validation_start=self._validation_start,
            on_validation_end=self._validation_end,
            on_train_end=self._train_end,
        )

    def _fit_start(self, trainer: Any, module: Any) -> None:
        if not trainer.enable_validation:
            raise _no_validation(self._metric)

    def _sanity_check_end(self, trainer: Any, module: Any) -> None:
        """Miss the metric before training rather than after, if anything was logged."""
        if trainer.callback_metrics:
            self._find(trainer)

    def _find(self, trainer: Any, others: Iterable[str] = ()) -> float:
        """The metric, as validation has logged it."""
        logged = trainer.callback_metrics
        if self._metric not in logged:
            raise _missing(self._metric, sorted({str(name) for name in logged} - set(others)))
        return float(logged[self._metric])

    def _train_start(self, trainer: Any, module: Any) -> None:
        total = trainer.estimated_stepping_batches
        if not isinstance(total, int) or total < 1:
            remedy = "Set max_steps: these data do not tell how long an epoch is."
            raise UnsupportedSetupError("Trainer", "a known number of steps", total, remedy)
        self.total_steps = total
        self.shapes, self.weights = _digests(module)
        self._peaks = _rates(trainer)
        self._on_start()
        self._training = True
        self._resume(trainer)

    def _batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        self.full_steps += 1
        pairs = zip_longest(self._peaks, _rates(trainer), fillvalue=0.0)
        self._peaks = [max(pair) for pair in pairs]
        if self._limit is not None:
            self._stop(trainer)
            self._resume(trainer)
            self.marks.append(self.seconds)
            if self.full_steps >= self._limit:
                raise EnoughError
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._draw(loss)
        now = perf_counter()
        if now - self._told >= self.PAUSE:
            self._told = now
            self._on_step(self.full_steps, math.nan if loss is None else float(loss))

    def _draw(self, loss: Tensor | None) -> None:
        """Add to the curve, reading the device at its points only."""
        if loss is not None:
            self._losses.append(loss.detach())
        if self.full_steps % max(1, self.total_steps // self.POINTS) == 0 and self._losses:
            mean = float(torch.stack(self._losses).mean())
            self.curve.append([self.full_steps, mean if math.isfinite(mean) else None])
            self._losses = []

    def _validation_start(self, trainer: Any, module: Any) -> None:
        if self._others is None and not trainer.sanity_checking:
            self._others = {str(name) for name in trainer.callback_metrics}
        if self._training:
            self._stop(trainer)

    def _validation_end(self, trainer: Any, module: Any) -> None:
        if self._training:
            value = self._find(trainer, self._others or ())
            shown = value if math.isfinite(value) else None
            self.metric_curve.append([self.full_steps, shown])
            self._resume(trainer)

    def _train_end(self, trainer: Any, module: Any) -> None:
        self._stop(trainer)
        self._training = False
        if self._limit is not None:
            return
        self.steps = int(trainer.global_step)
        if self.steps < self.total_steps:
            expected, remedy = f"a run of {self.total_steps} steps", "Leave out what ends it early."
            raise UnsupportedSetupError("Trainer", expected, self.steps, remedy)
        pairs = zip_longest(_rates(trainer), self._peaks, fillvalue=0.0)
        self.rates = [last / peak if peak else 1.0 for last, peak in pairs]
        self._measure(trainer, module)

    def _measure(self, trainer: Any, module: Any) -> None:
        """Validate the final weights on the run's own validation data."""
        import lightning.pytorch as pl

        if not all(bool(p.isfinite().all()) for p in module.parameters() if p.is_floating_point()):
            self.failure = DIVERGED
            return
        # A validation by trainer.validate would set model and data up anew, from other states.
        trainer.callback_metrics.pop(self._metric, None)
        pl.seed_everything(self._seed, workers=True, verbose=False)
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        value = self._find(trainer, self._others or ())
        trainer.training = True
        if math.isfinite(value):
            self.value = value
        else:
            self.failure = NOT_FINITE

    def _resume(self, trainer: Any) -> None:
        _settle(trainer)
        self._resumed = perf_counter()

    def _stop(self, trainer: Any) -> None:
        _settle(trainer)
        assert self._resumed is not None
        self.seconds += perf_counter() - self._resumed


def _settle(trainer: Any) -> None:
    """Wait until the device has done what it was given."""
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)


def _rates(trainer: Any) -> list[float]:
    """Learning rates of the parameter groups, but for schedules that follow a metric."""
    following = [c.scheduler.optimizer for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    chosen = [o for o in trainer.optimizers if not any(o is other for other in following)]
    return [float(group["lr"]) for optimizer in chosen for group in optimizer.param_groups]


def _digests(module: torch.nn.Module) -> tuple[str, str]:
    """Digests of what the parameters are, and of the values of parameters and buffers."""
    shapes, weights = hashlib.sha256(), hashlib.sha256()
    for name, parameter in module.named_parameters():
        shapes.update(f"{name} {tuple(parameter.shape)} {parameter.dtype};".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        weights.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        weights.update(flat.view(torch.uint8).numpy().data)
    return shapes.hexdigest(), weights.hexdigest()


def _no_validation(metric: str) -> ConfigError:
    """What to say to a run without validation."""
    return ConfigError(
        "metric",
        f"{metric!r} from a validation",
        "no validation",
        "Give validation data, and a model whose validation_step logs it.",
    )


def _missing(metric: str, logged: list[str]) -> ConfigError:
    """What to say to a validation that does not log the metric."""
    remedy = f"The validation logs {', '.join(logged)}." if logged else "It logs nothing."
    return ConfigError("metric", "a name that the model logs in validation_step", metric, remedy)
