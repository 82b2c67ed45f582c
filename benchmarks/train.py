"""Trains one cell in a plain loop, with or without the plug-in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.arms import ARMS
from benchmarks.memory import Memory
from benchmarks.plan import Cell
from benchmarks.tasks import Task
from hybrid_predict import HybridEngine

_CHECK_EVERY = 50


def warm(task: Task) -> None:
    """Load the data and the initial weights of a task, so that no run is charged for it."""
    task.model(0)
    next(task.batches(0))


def train(cell: Cell, task: Task) -> dict[str, Any]:
    """Train a cell and measure loss, steps, seconds and memory.

    Args:
        cell: The cell.
        task: Its task.

    Returns:
        ``loss`` (None if the run diverged), ``full_steps``, ``predicted_steps`` that stand
        and their ``mean_length`` in drifts, ``undone_steps``, ``seconds`` of training (processor
        time without a CUDA device, so that other work on the machine counts little), and
        ``memory`` (bytes, see `Memory`).
    """
    warm(task)
    memory = Memory()
    run = Run(cell, task)
    clock = perf_counter if torch.cuda.is_available() else process_time
    started = clock()
    run.train()
    seconds = clock() - started
    used = memory.used()
    run.show_final_weights()
    loss = task.final_loss(run.model)
    ledger = run.engine.ledger if run.engine else None
    return {
        "loss": loss if run.finite and math.isfinite(loss) else None,
        "full_steps": run.full_steps,
        "predicted_steps": ledger.predicted_steps if ledger else 0,
        "undone_steps": ledger.undone_steps if ledger else 0,
        "mean_length": ledger.mean_length if ledger else None,
        "seconds": seconds,
        "memory": used,
    }


class Run:
    """The parts of one training run."""

    def __init__(self, cell: Cell, task: Task) -> None:
        arm = ARMS[cell.arm]
        self.model = task.model(cell.seed)
        self.full_steps, self.finite = 0, True
        self._task, self._batches = task, task.batches(cell.seed)
        updates = arm.schedule(cell.steps)
        self._optimizers = optimizers = arm.build(self.model, task.recipe, cell.rates, updates)
        decay = task.recipe.factor(updates) if cell.decay and arm.scheduled else _constant
        self._schedulers = [LambdaLR(optimizer, decay) for optimizer in optimizers]
        self._stepper = arm.around(optimizers)
        self._stepper.plan(updates)
        self._budget = updates
        self.engine: HybridEngine | None = None
        if (config := arm.config(cell.steps)) is not None:
            self.engine = HybridEngine(self.model, optimizers, config)

    def train(
        self,
        before: Callable[[], object] = lambda: None,
        after: Callable[[float], object] = lambda rate: None,
    ) -> None:
        """Train to the end of the schedule, or until a weight is not finite.

        Args:
            before: Called before every full step.
            after: Called after it with the learning rate of the last group.
        """
        while self.finite and not self._done:
            if self.engine is not None:
                self.engine.before_step()
            before()
            loss = self._task.full_step(self.model, next(self._batches), self._stepper)
            after(self._optimizers[-1].param_groups[-1]["lr"])
            ticks = 1 if self.engine is None else self.engine.after_step(loss).ticks
            self.full_steps += 1
            for _ in range(ticks):
                for scheduler in self._schedulers:
                    scheduler.step()
            if self.full_steps % _CHECK_EVERY == 0:
                self.finite = self._weights_are_finite()
        if self.engine is not None:
            self.engine.detach()

    def _weights_are_finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def show_final_weights(self) -> None:
        """Load the final weights into the model if the optimizer trained others."""
        parts = [p for p in (self._stepper, *self._optimizers) if hasattr(p, "eval")]
        for part in parts:
            part.eval()
        if parts:
            refresh_batch_norm(self._task, self.model, self._batches)

    @property
    def _done(self) -> bool:
        return self.engine.done if self.engine is not None else self.full_steps >= self._budget


@torch.no_grad()
def refresh_batch_norm(
    task: Task, model: nn.Module, batches: Iterator[Any], count: int = 32
) -> None:
    """Compute batch-norm statistics again, for weights that were not trained themselves.

    Args:
        task: Task whose forward pass is used.
        model: Model in training mode.
        batches: Source of batches.
        count: Number of batches to draw; none without batch norm.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average
    for _ in range(count if norms else 0):
        task.loss(model, next(batches))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _constant(update: int) -> float:
    return 1.0
