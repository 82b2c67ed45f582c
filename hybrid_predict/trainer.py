"""Trains any model that can do forward and backward, in a loop that the package owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hybrid_predict import distributed
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import HybridEngine
from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.verification import Verdict
from hybrid_predict.window import StepRecord


class TrainableModel(ABC):
    """A model as forward and backward; subclasses are final."""

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The module that holds the parameters."""

    @abstractmethod
    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch, 0-dim, with its autograd history."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the parameters' ``grad``."""


class TorchModel(TrainableModel):
    """A torch module with a loss function.

    Args:
        module: The network.
        loss_fn: ``loss_fn(module, batch)`` gives a 0-dim loss tensor.

    Raises:
        ConfigError: If an argument has a wrong type.
    """

    def __init__(self, module: nn.Module, loss_fn: Callable[[nn.Module, Any], Tensor]) -> None:
        if not isinstance(module, nn.Module):
            raise ConfigError("module", "a torch.nn.Module", type(module).__name__)
        if not callable(loss_fn):
            raise ConfigError("loss_fn", "a function of (module, batch)", loss_fn)
        self._module = module
        self._loss_fn = loss_fn

    @property
    def module(self) -> nn.Module:
        """The network."""
        return self._module

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self._loss_fn(self._module, batch)

    def backward(self, loss: Tensor) -> None:
        """Back-propagate."""
        loss.backward()


@dataclass(frozen=True)
class StepResult:
    """What one :meth:`HybridTrainer.step` did.

    Args:
        loss: Training loss of the batch, a detached 0-dim tensor on the model's device.
        record: The last full step that was taken.
        ticks: Equivalent steps in all; more than ``record.ticks`` after a retry.
        retried: Batches trained again at base weights because a forecast was rejected.
    """

    loss: Tensor
    record: StepRecord
    ticks: int
    retried: int


class HybridTrainer:
    """Trains a :class:`TrainableModel`, one batch per :meth:`step`.

    A batch whose loss or gradient was not finite at a forecast point is trained again at base
    weights, as soon as its verdict is read.

    Args:
        model: The model.
        optimizer: Its optimizer, wrapped.
        config: The configuration; ``total_steps`` is required.
        scheduler: Learning-rate scheduler, stepped as often as the clock ticks.

    Raises:
        ConfigError: If an argument is out of range.
    """

    def __init__(
        self,
        model: TrainableModel,
        optimizer: OptimizerWrapper,
        config: HybridConfig,
        scheduler: LRScheduler | None = None,
    ) -> None:
        if not isinstance(model, TrainableModel):
            raise ConfigError(
                "model",
                "a TrainableModel",
                type(model).__name__,
                "Wrap a torch module as TorchModel(module, loss_fn).",
            )
        self.engine = HybridEngine(model.module, optimizer, config)
        self._model = model
        self._optimizer = self.engine.optimizer
        self._scheduler = scheduler
        self._recent: deque[tuple[int, Any]] = deque(maxlen=(self.engine.config.lag or 0) + 1)

    @property
    def done(self) -> bool:
        """Whether the run has reached its length."""
        return self.engine.done

    @property
    def ledger(self) -> SavingsLedger:
        """What the run has cost and saved."""
        return self.engine.ledger

    def step(self, batch: Any) -> StepResult:
        """Train on one batch: forecast, forward, backward, update, verify.

        Args:
            batch: Whatever the model's ``forward`` takes.

        Returns:
            The result; a batch that has to be trained again is, within this call.
        """
        loss, record = self._full_step(batch, forecast=True)
        if record.horizon > 0 and not self.engine.config.shadow:
            self._recent.append((record.step, batch))
        ticks, retried = record.ticks, 0
        while (again := self._to_retry(record)) is not None:
            loss, record = self._full_step(again, forecast=False)
            ticks, retried = ticks + record.ticks, retried + 1
        return StepResult(loss, record, ticks, retried)

    def fit(self, batches: Iterable[Any]) -> SavingsLedger:
        """Train on batches until the run is done or they end.

        Args:
            batches: One batch per full step.

        Returns:
            The ledger. The weights are base weights, also after an exception.

        Raises:
            RankError: If another rank that trains the same model has failed.
        """
        remaining = iter(batches)
        try:
            while not self.done:
                try:
                    batch = next(remaining)
                except StopIteration:
                    break
                self.step(batch)
        except Exception as error:
            distributed.fail_together(error)
            raise
        return self.ledger

    def _full_step(self, batch: Any, *, forecast: bool) -> tuple[Tensor, StepRecord]:
        def evaluate() -> Tensor:
            return self._model.forward(batch)

        self.engine.before_step(evaluate, forecast=forecast)
        try:
            loss = self._model.forward(batch)
            self._model.backward(loss)
        except BaseException:
            self.engine.abandon()
            raise
        for optimizer in self._optimizer.optimizers:
            optimizer.step()
        for optimizer in self._optimizer.optimizers:
            optimizer.zero_grad()
        record = self.engine.after_step(loss)
        for _ in range(record.ticks if self._scheduler is not None else 0):
            assert self._scheduler is not None
            self._scheduler.step()
        return loss.detach(), record

    def _to_retry(self, record: StepRecord) -> Any:
        if record.verdict is not Verdict.REJECTED or record.finite:
            return None
        return next((batch for step, batch in self._recent if step == record.read_step), None)
