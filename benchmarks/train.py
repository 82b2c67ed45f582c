"""Trains one cell in a plain loop, with or without the plug-in."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.arms import ARMS
from benchmarks.plan import Cell
from benchmarks.tasks import Task
from hybrid_predict import HybridEngine

_CHECK_EVERY = 50


def warm(task: Task) -> None:
    """Load the data and the initial weights of a task, so that no run is charged for it."""
    task.model(0)
    next(task.batches(0))


def train(cell: Cell, task: Task) -> dict[str, Any]:
    """Train a cell and measure it; ``mean_length`` is in drifts, ``hit`` as in :class:`Run`."""
    warm(task)
    run = Run(cell, task)
    started = clock()
    run.train()
    seconds = clock() - started
    return {**run.result(), "seconds": seconds}


def clock() -> float:
    """Return seconds, of the processor without a CUDA device: other work changes them little."""
    if not torch.cuda.is_available():
        return process_time()
    torch.cuda.synchronize()
    return perf_counter()


class Run:
    """The training of one cell; ``changes`` are fields of the plug-in's configuration.

    Where the task has a target, the run ends in full step ``hit`` that reaches it, or after as many
    full steps as the arm has without predicted ones.
    """

    def __init__(self, cell: Cell, task: Task, **changes: Any) -> None:
        arm = ARMS[cell.arm]
        self.model = task.model(cell.seed)
        self.full_steps = 0
        self.finite = True
        self.hit: int | None = None
        self._task = task
        self._most = cell.budget if task.target is not None else math.inf
        self._batches = task.batches(cell.seed)
        self._budget = arm.schedule(cell.steps)
        self._optimizers = arm.build(self.model, task.recipe, cell.rates, self._budget)
        factor = task.recipe.factor(self._budget) if cell.decay else (lambda step: 1.0)
        self._schedulers = [LambdaLR(optimizer, factor) for optimizer in self._optimizers]
        config = arm.config(cell.steps)
        self.engine: HybridEngine | None = None
        if config is not None:
            self.engine = HybridEngine(self.model, self._optimizers, replace(config, **changes))

    @property
    def done(self) -> bool:
        """Whether all steps are made, or a weight was not finite."""
        spent = self.engine.done if self.engine else self.full_steps >= self._budget
        return spent or self.full_steps >= self._most or self.hit is not None or not self.finite

    def train(self) -> None:
        """Train to the end of the schedule."""
        while not self.done:
            self.step()
            if self.full_steps % _CHECK_EVERY == 0:
                self.finite = all(bool(p.isfinite().all()) for p in self.model.parameters())
        self.close()

    def close(self) -> None:
        """Detach the engine from the model."""
        if self.engine:
            self.engine.detach()

    def step(self) -> None:
        """Take one full step, after the predicted steps that are due."""
        if self.engine:
            self.engine.before_step()
        loss = self._task.full_step(self.model, next(self._batches), *self._optimizers)
        ticks = self.engine.after_step(loss).ticks if self.engine else 1
        self.full_steps += 1
        for _ in range(ticks):
            for scheduler in self._schedulers:
                scheduler.step()
        target = self._task.target
        if target is not None and self._task.final_loss(self.model) <= target:
            self.hit = self.full_steps

    def result(self) -> dict[str, Any]:
        """Evaluate the trained model; return the loss, None if the run diverged, and counts."""
        loss = self._task.final_loss(self.model)
        ledger = self.engine.ledger if self.engine else None
        return {
            "loss": loss if self.finite and math.isfinite(loss) else None,
            "full_steps": self.full_steps,
            "predicted_steps": ledger.predicted_steps if ledger else 0,
            "undone_steps": ledger.undone_steps if ledger else 0,
            "mean_length": ledger.mean_length if ledger else None,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            **({} if self._task.target is None else {"hit": self.hit}),
        }
