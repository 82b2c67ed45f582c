"""A training loop for any model with a forward and a backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import GradientInfo, SavingsLedger, StepRecord
from hybrid_predict.optimizers.wrapper import OptimizerWrapper
from hybrid_predict.ranks.shards import dense_gradient


class TrainableModel(ABC):
    """Interface of a model that :class:`HybridTrainer` can train."""

    module: nn.Module
    """The module that holds the parameters."""

    @abstractmethod
    def forward(self, batch: Any) -> Tensor:
        """Return the loss of a batch, a 0-dim tensor with its autograd graph."""

    @abstractmethod
    def backward(self, loss: Tensor) -> GradientInfo:
        """Accumulate the gradient of a loss into the parameters' ``grad``.

        Returns:
            Loss, gradient norm per parameter name, and total gradient norm, as 0-dim tensors on the
            device; ``alignments`` is empty.
        """


@final
class TorchModel(TrainableModel):
    """A torch module, and a loss ``loss_fn(module, batch)``, which returns a 0-dim tensor.

    Raises:
        ConfigError: If an argument has the wrong type.
    """

    def __init__(self, module: nn.Module, loss_fn: Callable[[nn.Module, Any], Tensor]) -> None:
        if not isinstance(module, nn.Module):
            raise ConfigError("module", "a torch.nn.Module", type(module).__name__)
        if not callable(loss_fn):
            raise ConfigError("loss_fn", "a function of (module, batch)", loss_fn)
        self.module = module
        self._loss_fn = loss_fn

    def forward(self, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        return self._loss_fn(self.module, batch)

    def backward(self, loss: Tensor) -> GradientInfo:
        """Back-propagate the loss, and measure the gradients."""
        loss.backward()
        named = [(n, p) for n, p in self.module.named_parameters() if p.grad is not None]
        norms = {n: torch.linalg.vector_norm(dense_gradient(p).float()) for n, p in named}
        known = list(norms.values()) or [loss.new_zeros(())]
        return GradientInfo(loss.detach(), torch.linalg.vector_norm(torch.stack(known)), norms)


@final
@dataclass(frozen=True)
class StepResult:
    """Result of one :meth:`HybridTrainer.step`.

    Args:
        loss: Training loss of the batch, a detached 0-dim tensor on the model's device.
        record: Record of the full step, and of the predicted steps before it.
    """

    loss: Tensor
    record: StepRecord


@final
class HybridTrainer:
    """Trains a :class:`TrainableModel`, one batch per :meth:`step`, until it is ``done``.

    Args:
        model: The model.
        optimizer: Its wrapped optimizer.
        config: The configuration; ``total_steps`` is required.
        scheduler: Learning-rate scheduler; it is stepped once per tick.

    Raises:
        ConfigError: If an argument is invalid.
    """

    def __init__(
        self,
        model: TrainableModel,
        optimizer: OptimizerWrapper,
        config: HybridConfig,
        scheduler: LRScheduler | None = None,
    ) -> None:
        if not isinstance(model, TrainableModel):
            remedy = "Wrap a torch module as TorchModel(module, loss_fn)."
            raise ConfigError("model", "a TrainableModel", type(model).__name__, remedy)
        self.engine = HybridEngine(model.module, optimizer, config)
        self._model = model
        self._scheduler = scheduler

    @property
    def done(self) -> bool:
        """Whether the run has taken ``total_steps`` steps."""
        return self.engine.done

    @property
    def ledger(self) -> SavingsLedger:
        """The run's ledger: its costs and savings."""
        return self.engine.ledger

    def step(self, batch: Any) -> StepResult:
        """Take the predicted steps that are due, and one full step on a batch."""
        engine = self.engine
        engine.before_step()
        try:
            loss = self._model.forward(batch)
            engine.observe_graph(loss)
            self._model.backward(loss)
            engine.observe_loss(loss)
        except BaseException:
            engine.abandon()
            raise
        engine.optimizer.step()
        for optimizer in engine.optimizer.optimizers:
            optimizer.zero_grad()
        record = engine.after_step(loss)
        if self._scheduler is not None:
            for _ in range(record.ticks):
                self._scheduler.step()
        return StepResult(loss.detach(), record)
