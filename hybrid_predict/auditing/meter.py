"""Measures one run from inside the Trainer, and refuses what shows itself only there."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from hybrid_predict.errors import ConfigError, UnsupportedSetupError

if TYPE_CHECKING:
    import lightning.pytorch as pl

OnStart = Callable[[int], None]
OnStep = Callable[[int, float], None]


class EnoughError(Exception):
    """Ends a trial run from inside; never leaves the package."""


class Meter:
    """Counts full steps and the seconds of training, validation left out.

    Args:
        metric: Metric that validation has to log.
        on_start: Is told the equivalent steps of the run when training starts.
        on_step: Is told full steps and training loss, about five times per second.
        limit: End by :class:`EnoughError` after so many full steps; None trains to the end.
    """

    PAUSE = 0.2

    def __init__(
        self,
        metric: str,
        on_start: OnStart = lambda total_steps: None,
        on_step: OnStep = lambda full_steps, loss: None,
        limit: int | None = None,
    ) -> None:
        self._metric = metric
        self._on_start = on_start
        self._on_step = on_step
        self._limit = limit
        self._resumed: float | None = None
        self._told = -math.inf
        self._training = False
        self.full_steps = 0
        self.total_steps = 0
        self.seconds = 0.0
        self.marks: list[float] = []

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
            raise no_validation(self._metric)

    def _sanity_check_end(self, trainer: Any, module: Any) -> None:
        """Miss the metric before training rather than after."""
        if self._metric not in trainer.callback_metrics:
            raise missing_metric(self._metric, trainer)

    def _train_start(self, trainer: Any, module: Any) -> None:
        total = trainer.estimated_stepping_batches
        if not isinstance(total, int) or total < 1:
            remedy = "Set max_steps: these data do not tell how long an epoch is."
            raise UnsupportedSetupError("Trainer", "a known number of steps", total, remedy)
        self.total_steps = total
        self._on_start(total)
        self._training = True
        self._resume(trainer)

    def _batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        self.full_steps += 1
        if self._limit is not None:
            self._stop(trainer)
            self._resume(trainer)
            self.marks.append(self.seconds)
            if self.full_steps >= self._limit:
                raise EnoughError
        now = perf_counter()
        if now - self._told >= self.PAUSE:
            self._told = now
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._on_step(self.full_steps, math.nan if loss is None else float(loss))

    def _validation_start(self, trainer: Any, module: Any) -> None:
        if self._training:
            self._stop(trainer)

    def _validation_end(self, trainer: Any, module: Any) -> None:
        if self._training:
            self._resume(trainer)

    def _train_end(self, trainer: Any, module: Any) -> None:
        self._stop(trainer)
        self._training = False

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


def no_validation(metric: str) -> ConfigError:
    """What to say to a run without validation."""
    return ConfigError(
        "metric",
        f"{metric!r} from a validation",
        "no validation",
        "Give validation data, and a model whose validation_step logs it.",
    )


def missing_metric(metric: str, trainer: Any) -> ConfigError:
    """What to say to a validation that does not log the metric."""
    logged = sorted(str(name) for name in trainer.callback_metrics)
    remedy = f"The validation logs {', '.join(logged)}." if logged else "It logs nothing."
    return ConfigError("metric", "a name that the model logs in validation_step", metric, remedy)
