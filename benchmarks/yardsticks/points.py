"""Problems without data: one tensor, and a loss of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from benchmarks.tasks import Task

Moment = tuple[int, Generator]
"""What a batch is: the full steps before it, and where its chance comes from."""


class Point(nn.Module):
    """One trained tensor, float64."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.double())


@dataclass(frozen=True, kw_only=True)
class PointTask(Task):
    """Minimise a function of one tensor."""

    metric = "distance from the optimum, or the loss"

    def net(self) -> Point:
        return Point(self.start())

    @abstractmethod
    def start(self) -> Tensor:
        """Return the first point, by the global random numbers."""

    def batches(self, seed: int) -> Iterator[Moment]:
        """Yield moments without end."""
        generator, step = torch.Generator().manual_seed(seed), 0
        while True:
            yield step, generator
            step += 1

    def loss(self, model: nn.Module, batch: Moment) -> Tensor:
        return self.value(model.x, *batch)  # type: ignore[arg-type]

    @abstractmethod
    def value(self, x: Tensor, step: int, generator: Generator) -> Tensor:
        """Return the training loss at a point and a moment, 0-dim."""

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        return float(self.judged(model.x))  # type: ignore[arg-type]

    @abstractmethod
    def judged(self, x: Tensor) -> Tensor:
        """Return the metric at a point, 0-dim."""


def beale(x: Tensor, y: Tensor) -> Tensor:
    """Beale's function; its minimum is 0 at (3, 0.5)."""
    constants = (1.5, 2.25, 2.625)
    terms = [(c - x + x * y**power) ** 2 for power, c in enumerate(constants, 1)]
    return torch.stack(terms).sum()


def rosenbrock(x: Tensor, y: Tensor, steepness: float) -> Tensor:
    """Rosenbrock's function; its minimum is 0 at (1, 1)."""
    return (1 - x) ** 2 + steepness * (y - x**2) ** 2
