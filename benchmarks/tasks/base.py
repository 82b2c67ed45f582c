"""Base class of tasks: model, batches, loss, metric, and a recipe for plain training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, one row each per example."""

COOLDOWN = 0.2  # share of the run in which the rate of ``warmup-stable-decay`` falls
FLOOR = 0.1  # where ``cosine`` ends
FIRST = 1 / 25  # where ``one-cycle`` starts, as torch's ``OneCycleLR``
LAST = 1e-4 / 25  # where it ends


def linear(step: int, total: int, share: float) -> float:
    """A linear rise to 1, then a linear fall to 0."""
    fall = max(1, total - max(1, round(share * total)))
    return min(constant(step, total, share), max(0.0, (total - step) / fall))


def constant(step: int, total: int, share: float) -> float:
    """A linear rise, then 1 to the end; without warm-up 1 from the first step."""
    return min(1.0, (step + 1) / max(1, round(share * total)))


def stable_decay(step: int, total: int, share: float) -> float:
    """A linear rise, then 1, then a linear fall to 0 (Haegele et al., 2024, arXiv 2405.18392)."""
    cooldown = max(1, round(COOLDOWN * total))
    return min(constant(step, total, share), max(0.0, (total - step) / cooldown))


def cosine(step: int, total: int, share: float) -> float:
    """A linear rise, then half a cosine down to a tenth, as in nanoGPT (Karpathy, 2022)."""
    warmup = round(share * total)
    if step < warmup:
        return constant(step, total, share)
    return _wave(1.0, FLOOR, min(1.0, (step - warmup) / max(1, total - warmup)))


def one_cycle(step: int, total: int, share: float) -> float:
    """Half a cosine up and one down, as `OneCycleLR` without momentum (arXiv 1708.07120, 2018)."""
    peak = max(1.0, share * total - 1)
    if step <= peak:
        return _wave(FIRST, 1.0, step / peak)
    return _wave(1.0, LAST, min(1.0, (step - peak) / max(1.0, total - 1 - peak)))


def _wave(start: float, end: float, part: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * part))


SCHEDULES = {
    "linear": linear,
    "constant": constant,
    "cosine": cosine,
    "one-cycle": one_cycle,
    "warmup-stable-decay": stable_decay,
}
"""Learning-rate schedules: the rate's factor by step from 0, their number, share of the warm-up."""


def grid(first: float, count: int) -> tuple[float, ...]:
    """Return numbers, each twice the one before."""
    return tuple(first * 2**k for k in range(count))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Plain training with AdamW; tuned settings take the best of ``rates``, which ascend."""

    rates: tuple[float, ...] = ()
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    gradient_clip: float | None = 1.0
    warmup_fraction: float = 0.05
    schedule: str = "linear"

    def factor(self, total: int) -> Callable[[int], float]:
        """The learning rate's factor by step, in a run of ``total`` steps."""
        return partial(SCHEDULES[self.schedule], total=total, share=self.warmup_fraction)


@dataclass(frozen=True)
class Task(ABC):
    """A training task of ``steps`` = T full steps, at least 6; subclasses hold sizes as fields.

    All random numbers come from the seed; the global random state is neither read nor changed.
    """

    metric: ClassVar[str]
    """What :meth:`evaluate` measures; smaller is better."""

    small: ClassVar[Mapping[str, Any]] = {}
    """Fields that :meth:`tiny` changes beside the steps."""

    kinds: ClassVar[Mapping[str, str]] = {}
    """Kinds by pattern of names that a loss tells, and names and shapes do not; for peers."""

    name: str
    title: str
    steps: int
    recipe: Recipe

    @property
    def target(self) -> float | None:
        """Value of the metric that ends a run; by default there is none."""
        return None

    def model(self, seed: int) -> nn.Module:
        """Return the model of a seed in training mode, like :meth:`net`."""
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would reseed every accelerator as well, which nothing undoes.
            torch.default_generator.manual_seed(seed)
            model = self.net()
        vars(model)["kinds"] = self.kinds
        return model

    @abstractmethod
    def net(self) -> nn.Module:
        """Return the model, initialised by the global random numbers."""

    @abstractmethod
    def batches(self, seed: int) -> Iterator[Any]:
        """Training batches without end."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Training loss of a batch, 0-dim, with its autograd history."""

    def full_step(self, model: nn.Module, batch: Any, *optimizers: Optimizer) -> Tensor:
        """Run forward, backward, clipping and updates; return the loss before the updates."""
        loss = self.loss(model, batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        if self.recipe.gradient_clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.recipe.gradient_clip)
        for optimizer in optimizers:
            optimizer.step()
        return loss

    @abstractmethod
    def evaluate(self, model: nn.Module) -> float:
        """The metric of a model in evaluation mode, called without gradients."""

    @torch.no_grad()
    def final_loss(self, model: nn.Module) -> float:
        """Return the metric of a model; its mode does not change."""
        training = model.training
        model.eval()
        try:
            return self.evaluate(model)
        finally:
            model.train(training)

    def tiny(self) -> Task:
        """Return the same task with a few steps, for a quick test."""
        return replace(self, steps=12, **self.small)

    def to_dict(self) -> dict[str, Any]:
        """Everything the task's results depend on, as plain data."""
        plain = {**asdict(self), "metric": self.metric}
        if self.recipe.schedule == "linear":
            # Committed runs have a digest of this from before recipes named a schedule.
            del plain["recipe"]["schedule"]
        return plain


@dataclass(frozen=True, kw_only=True)
class RegressionTask(Task):
    """A task on pairs of inputs and targets, both tensors."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return F.mse_loss(model(inputs), targets)

    @abstractmethod
    def judged(self) -> Batch:
        """Return the pairs that the metric is computed on."""

    def evaluate(self, model: nn.Module) -> float:
        return float(self.loss(model, self.judged()).log10())


@dataclass(frozen=True, kw_only=True)
class ClassificationTask(Task):
    """A task on pairs of inputs and classes, both tensors."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, classes = batch
        return F.cross_entropy(model(inputs), classes)


def drawn(batch: Batch, count: int, seed: int) -> Iterator[Batch]:
    """Yield ``count`` random rows of both tensors, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(batch[0]), (count,), generator=generator)
        yield batch[0][chosen], batch[1][chosen]


def perceptron(
    *widths: int,
    activation: type[nn.Module] = nn.ReLU,
    start: Callable[[Tensor], object] | None = None,
) -> list[nn.Module]:
    """Return linear layers and activations; ``start`` sets weights of all layers but the last."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        linear = nn.Linear(before, after)
        if start is not None:
            start(linear.weight)
        layers += [linear, activation()]
    return [*layers, nn.Linear(widths[-2], widths[-1])]


@lru_cache(maxsize=4)
def trained_state(task: Task) -> dict[str, Tensor]:
    """Return the weights after a task's plain training with seed 0, the same on every call."""
    recipe = task.recipe
    model = task.model(0)
    fixed: dict[str, Any] = {"betas": recipe.betas, "weight_decay": recipe.weight_decay}
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, **fixed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.factor(task.steps))
    batches = task.batches(0)
    for _ in range(task.steps):
        task.full_step(model, next(batches), optimizer)
        schedule.step()
    return {name: value.clone() for name, value in model.state_dict().items()}
