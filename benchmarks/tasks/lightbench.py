"""LightBench: small problems that trap optimizers, each until its published target is reached.

Problems, targets and AdamW's winning rates are those of LightBench 0.1.1
(github.com/HomebrewML/LightBench): the families that some arm has solved, and `wide_linear`, which
has a matrix. Betas are AdamW's defaults, since its table of results rounds the winning ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from benchmarks.tasks.base import Recipe, Task


class Family(NamedTuple):
    """Start and loss by level (name, parameter, AdamW's rate); the loss is judged or an optimum."""

    goal: float
    levels: tuple[tuple[str, float, float], ...]
    start: Callable[[float], Tensor]
    loss: Callable[[Tensor, float, Generator], Tensor]
    optimum: Callable[[Tensor], Tensor] | None = None


def _scales(x: Tensor, level: float) -> Tensor:
    return torch.tensor([level, 1.0, 1 / level], dtype=x.dtype).repeat_interleave(len(x) // 3)


def _weights(x: Tensor) -> Tensor:
    return torch.arange(1, 1 + len(x), dtype=x.dtype) * 2 / (len(x) * (len(x) + 1))


def _line(x: Tensor) -> Tensor:
    return F.normalize(torch.arange(len(x), dtype=x.dtype), dim=0)


def _sums(x: Tensor, level: float, generator: Generator) -> Tensor:
    rows = torch.randn(16, len(x), generator=generator, dtype=x.dtype)
    return (rows @ x - rows.cumsum(1)).square().mean()


def _plateau(x: Tensor, level: float, generator: Generator) -> Tensor:
    return torch.sigmoid((x.square().sum() - 1) * level) - 1 / (1 + math.exp(level))


def _rosenbrock(x: Tensor, steepness: float, generator: Generator) -> Tensor:
    return (1 - x[0]) ** 2 + steepness * (x[1] - x[0] ** 2) ** 2


FAMILIES: dict[str, Family] = {
    "rosenbrock": Family(
        1e-9, (("trivial", 1, 0.14105),), lambda n: torch.tensor([-7.0, -4.0]), _rosenbrock
    ),
    "plateau_navigation": Family(
        1e-4,
        (("trivial", 1, 0.01105), ("easy", 4, 0.01105), ("medium", 8, 0.01105)),
        lambda n: torch.tensor([1.5, 1.5]),
        _plateau,
    ),
    "layer_wise_scale": Family(
        1e-4,
        (("trivial", 2, 0.00116), ("medium", 1e3, 0.00116)),
        lambda n: torch.randn(3 * 1024),
        lambda x, n, g: (x.square() * _scales(x, n)).mean(),
    ),
    "scale_invariant": Family(
        1e-3,
        (
            ("trivial", 1, 0.05949),
            ("easy", 2, 0.01981),
            ("medium", 3, 0.32455),
            ("hard", 4, 0.91272),
        ),
        lambda n: torch.logspace(-n, n, 512) * torch.randn(512),
        lambda x, n, g: x.square().log1p().mean(),
    ),
    "quadratic_varying_scale": Family(
        1e-7,
        (("trivial", 4, 0.00116), ("medium", 512, 0.00116)),
        lambda n: torch.randn(int(n)),
        lambda x, n, g: x.square() @ _weights(x),
        torch.zeros_like,
    ),
    "quadratic_varying_target": Family(
        1e-8,
        (("trivial", 4, 0.03389), ("medium", 512, 0.00451)),
        lambda n: torch.randn(int(n)),
        lambda x, n, g: (x - _line(x)).square().mean(),
        _line,
    ),
    "wide_linear": Family(
        1e-3,
        (("trivial", 4, 0.001), ("easy", 32, 0.001)),
        lambda n: torch.randn(int(n), int(n)),
        _sums,
        lambda x: torch.ones_like(x).triu(),
    ),
}


class Point(nn.Module):
    """One trained tensor, float64."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.double())


@dataclass(frozen=True, kw_only=True)
class Trap(Task):
    """A problem of a family at a level of difficulty; a batch is where its chance comes from."""

    metric = "distance from the optimum, or the loss"

    family: str
    level: float

    @property
    def target(self) -> float:
        return FAMILIES[self.family].goal

    @property
    def fixed(self) -> bool:
        """Whether no seed changes the problem."""
        return self.family in ("rosenbrock", "plateau_navigation")

    def net(self) -> Point:
        return Point(FAMILIES[self.family].start(self.level))

    def batches(self, seed: int) -> Iterator[Generator]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield generator

    def loss(self, model: nn.Module, batch: Generator) -> Tensor:
        assert isinstance(model, Point)
        return FAMILIES[self.family].loss(model.x, self.level, batch)

    def evaluate(self, model: nn.Module) -> float:
        assert isinstance(model, Point)
        if (optimum := FAMILIES[self.family].optimum) is None:
            return float(self.loss(model, torch.Generator()))
        return float((model.x - optimum(model.x)).square().mean().sqrt())


_ADAM = Recipe(
    betas=(0.9, 0.999),
    weight_decay=0.0,
    gradient_clip=None,
    warmup_fraction=0.0,
    schedule="constant",
)

LIGHTBENCH = tuple(
    Trap(
        f"{name}-{level}",
        name,
        steps=4000,
        family=name,
        level=parameter,
        recipe=replace(_ADAM, learning_rate=rate, rates=(rate,)),
    )
    for name, family in FAMILIES.items()
    for level, parameter, rate in family.levels
)
