"""A residual multilayer perceptron on rows of a table, in small batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, RegressionTask, drawn, grid


def friedman(rows: Tensor) -> Tensor:
    r"""Friedman's first function, of five columns (1991).

    .. math:: 10 \sin(\pi x_1 x_2) + 20 (x_3 - 1/2)^2 + 10 x_4 + 5 x_5

    for values from 0 to 1 of shape [N, at least 5].
    """
    first, second, third, fourth, fifth = rows.unbind(1)[:5]
    waves = 10 * (math.pi * first * second).sin()
    return waves + 20 * (third - 0.5).square() + 10 * fourth + 5 * fifth


@lru_cache(maxsize=1)
def load_table(rows: int, columns: int) -> tuple[Batch, Batch]:
    """Return training rows, with noise, and held-out ones, [rows, columns], targets [rows, 1]."""
    generator = torch.Generator().manual_seed(0)

    def draw(noise: float) -> Batch:
        values = torch.rand(rows, columns, generator=generator)
        target = friedman(values) + noise * torch.randn(rows, generator=generator)
        # Mean and standard deviation of Friedman's function over the unit cube.
        return (values - 0.5) * math.sqrt(12), ((target - 14.4) / 4.9)[:, None]

    return draw(noise=1.0), draw(noise=0.0)


class ResidualLayer(nn.Module):
    """Normalise, widen, ReLU, narrow, add (Gorishniy et al., 2021, without dropout)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.narrow(F.relu(self.widen(self.norm(x))))
        return x + inside


@dataclass(frozen=True, kw_only=True)
class TabularTask(RegressionTask):
    """Regression on a table, with matrices that are much wider than a batch has rows."""

    metric = "log10 of the held-out mean squared error"

    steps: int = 1000
    recipe: Recipe = Recipe(rates=grid(0.001, 5), betas=(0.9, 0.999))
    rows: int = 8192
    columns: int = 20
    width: int = 256
    layers: int = 2
    batch_size: int = 64

    def net(self) -> nn.Module:
        blocks = [ResidualLayer(self.width) for _ in range(self.layers)]
        end = (nn.BatchNorm1d(self.width), nn.ReLU(), nn.Linear(self.width, 1))
        return nn.Sequential(nn.Linear(self.columns, self.width), *blocks, *end)

    def batches(self, seed: int) -> Iterator[Batch]:
        return drawn(load_table(self.rows, self.columns)[0], self.batch_size, seed)

    def judged(self) -> Batch:
        return load_table(self.rows, self.columns)[1]


TABULAR = TabularTask("tabular", "residual perceptron on a table")
