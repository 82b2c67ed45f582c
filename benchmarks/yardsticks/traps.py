"""LightBench's families without data: known traps for optimizers, as functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from benchmarks.yardsticks.points import PointTask, beale, rosenbrock


class Family(NamedTuple):
    """Start and loss by level; without an optimum the loss itself is judged."""

    start: Callable[[float], Tensor]
    loss: Callable[[Tensor, float, Generator], Tensor]
    optimum: Callable[[Tensor], Tensor] | None = None


def _scales(x: Tensor, level: float) -> Tensor:
    """Return factors from level to 1 / level for thirds of a vector."""
    return torch.tensor([level, 1.0, 1 / level], dtype=x.dtype).repeat_interleave(len(x) // 3)


def _normal(x: Tensor, generator: Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype)


def _batch_noise(x: Tensor, largest: float, generator: Generator) -> Tensor:
    """Return noise as long as the point, over the root of a random batch size."""
    noise = _normal(x, generator)
    size = largest ** (float(torch.rand(1, generator=generator)) / 2)
    return noise * (x.norm() / (noise.norm() + 1e-6)).detach() / math.sqrt(size)


def _weights(x: Tensor) -> Tensor:
    return torch.arange(1, 1 + len(x), dtype=x.dtype) * 2 / (len(x) * (len(x) + 1))


def _line(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(torch.arange(len(x), dtype=x.dtype), dim=0)


def _sums(x: Tensor, level: float, generator: Generator) -> Tensor:
    """Return the error of a linear map that should form cumulative sums."""
    rows = torch.randn(16, len(x), generator=generator, dtype=x.dtype)
    return (rows @ x - rows.cumsum(1)).square().mean()


def _plateau(x: Tensor, level: float) -> Tensor:
    return torch.sigmoid((x.square().sum() - 1) * level) - 1 / (1 + math.exp(level))


FAMILIES: dict[str, Family] = {
    "rosenbrock": Family(
        lambda n: torch.tensor([-7.0, -4.0]), lambda x, n, g: rosenbrock(x[0], x[1], n)
    ),
    "beale": Family(
        lambda n: torch.tensor([-7.0, -4.0]), lambda x, n, g: beale(x[0] + 3, x[1] + 0.5)
    ),
    "rastrigin": Family(
        lambda n: torch.tensor([-2.2, -2.2]),
        lambda x, n, g: (x.square() + n * (1 - (2 * math.pi * x).cos())).mean(),
    ),
    "saddle_point": Family(
        lambda n: torch.tensor([1.2, 1.9]), lambda x, n, g: (x ** int(2 * n + 1)).sum() + 10
    ),
    "plateau_navigation": Family(
        lambda n: torch.tensor([1.5, 1.5]), lambda x, n, g: _plateau(x, n)
    ),
    "layer_wise_scale": Family(
        lambda n: torch.randn(3 * 1024), lambda x, n, g: (x.square() * _scales(x, n)).mean()
    ),
    "parameter_scale": Family(
        lambda n: torch.randn(3 * 1024) * _scales(torch.ones(3 * 1024), n),
        lambda x, n, g: x.square().mean(),
    ),
    "scale_invariant": Family(
        lambda n: torch.logspace(-n, n, 512) * torch.randn(512),
        lambda x, n, g: x.square().log1p().mean(),
    ),
    "quadratic_varying_scale": Family(
        lambda n: torch.randn(int(n)), lambda x, n, g: x.square() @ _weights(x), torch.zeros_like
    ),
    "quadratic_varying_target": Family(
        lambda n: torch.randn(int(n)), lambda x, n, g: (x - _line(x)).square().mean(), _line
    ),
    "gradient_noise_scale": Family(
        lambda n: torch.randn(4096),
        lambda x, n, g: (x + _normal(x, g) / n).square().mean(),
        torch.zeros_like,
    ),
    "batch_size_scaling": Family(
        lambda n: torch.randn(1024),
        lambda x, n, g: (x + _batch_noise(x, n, g)).square().mean(),
        torch.zeros_like,
    ),
    "discontinuous_gradient": Family(
        lambda n: torch.randn(1024),
        lambda x, n, g: torch.where(x < 0, x.square(), 2 * x).mean(),
        torch.zeros_like,
    ),
    "wide_linear": Family(
        lambda n: torch.randn(int(n), int(n)), _sums, lambda x: torch.ones_like(x).triu()
    ),
}
"""Families by name."""


@dataclass(frozen=True, kw_only=True)
class Trap(PointTask):
    """A problem of a family at a level of difficulty."""

    family: str
    level: float

    def start(self) -> Tensor:
        return FAMILIES[self.family].start(self.level)

    def value(self, x: Tensor, step: int, generator: Generator) -> Tensor:
        return FAMILIES[self.family].loss(x, self.level, generator)

    def judged(self, x: Tensor) -> Tensor:
        if (optimum := FAMILIES[self.family].optimum) is None:
            return self.value(x, 0, torch.Generator())
        return (x - optimum(x)).square().mean().sqrt()
