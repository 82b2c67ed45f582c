"""Runs a LightningModule's training step so that nothing outside notices."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor
from torchmetrics import Metric

from hybrid_predict.errors import UnsupportedSetupError


def training_loss(
    trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
) -> Tensor | None:
    """The loss of a batch through the Trainer's own precision and strategy, nothing logged.

    None if the module gives none for it. Gradients, buffers and random states are the caller's to
    shield.
    """
    with _muted(trainer, pl_module):
        kwargs = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, batch_idx)
        output = trainer.strategy.training_step(*kwargs.values())
    loss = output["loss"] if isinstance(output, dict) else output
    return loss.detach().float() if isinstance(loss, Tensor) else None


def refuse_loss_check(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Raise where a training step cannot be run once more without consequences.

    Args:
        trainer: The Trainer, at the start of training.
        pl_module: What it is to train.

    Raises:
        UnsupportedSetupError: If the training step updates weights or fetches batches itself.
    """
    reason = ""
    if not pl_module.automatic_optimization:
        reason = "a training_step that steps optimizers itself"
    elif hasattr(trainer.fit_loop._data_fetcher, "iterator_wrapper"):
        reason = "a training_step that takes the loader's iterator"
    if reason:
        raise UnsupportedSetupError(
            "loss_tolerance",
            "a training_step that can be run for its loss alone",
            reason,
            "Set HybridConfig(loss_tolerance=None).",
        )


@contextmanager
def _muted(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Iterator[None]:
    """No logging from the module, no loggers, metrics as they were afterwards."""
    metrics = [m for m in pl_module.modules() if isinstance(m, Metric)]
    kept = [(m, copy.deepcopy(m.__dict__)) for m in metrics]
    loggers = trainer.loggers
    for name in ("log", "log_dict"):
        object.__setattr__(pl_module, name, lambda *args, **kwargs: None)
    trainer.loggers = [DummyLogger() for _ in loggers]
    try:
        yield
    finally:
        trainer.loggers = loggers
        for name in ("log", "log_dict"):
            object.__delattr__(pl_module, name)
        for metric, state in kept:
            metric.__dict__.update(state)
