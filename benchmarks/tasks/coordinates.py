"""A coordinate net at high rates: every step sees every pixel of a photograph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, seeded
from benchmarks.tasks.photograph import Batch, load_photograph


@lru_cache(maxsize=1)
def flower(height: int, width: int) -> Batch:
    """A smaller version of a photograph of a flower.

    Args:
        height: Rows.
        width: Columns.

    Returns:
        Positions of the pixel centres in [-1, 1], (down, right), float32 of shape
        [height * width, 2], and colours from 0 to 1, float32 of shape [height * width, 3].
    """
    small = F.interpolate(load_photograph("flower.jpg")[None], (height, width), mode="area")[0]
    centres = [(2 * torch.arange(size) + 1) / size - 1 for size in (height, width)]
    return torch.cartesian_prod(*centres), small.flatten(1).T.contiguous()


class Octaves(nn.Module):
    r"""Positions as waves whose frequencies double (Mildenhall et al., 2020).

    .. math:: \gamma(x) = [\cos 2^k \pi x, \sin 2^k \pi x], \quad k = 0, \dots, L - 1

    Args:
        count: L.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, positions: Tensor) -> Tensor:
        """Features of shape [N, 4 L] for positions of shape [N, 2]."""
        octaves = math.pi * 2.0 ** torch.arange(self.count)
        phases = (positions[:, :, None] * octaves).flatten(1)
        return torch.cat((phases.cos(), phases.sin()), dim=1)


@dataclass(frozen=True, kw_only=True)
class CoordinateTask(Task):
    """Fit one photograph with a coordinate net, all of it in every batch.

    The metric is on the pixels that the net is trained on: they carry no noise, and fitting them is
    all that is asked of such a net.

    Args:
        height: Rows of the photograph.
        width: Its columns.
        octaves: Frequencies of each coordinate.
        widths: Units of the hidden layers.
    """

    metric = "log10 of the mean squared error over all pixels"

    height: int = 48
    width: int = 72
    octaves: int = 6
    widths: tuple[int, ...] = (64, 64, 64)

    def model(self, seed: int) -> nn.Module:
        """Octaves, linear layers with ReLU, and three colours."""
        return seeded(self._net, seed)

    def _net(self) -> nn.Module:
        layers: list[nn.Module] = [Octaves(self.octaves)]
        for before, after in pairwise((4 * self.octaves, *self.widths)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.widths[-1], 3))

    def batches(self, seed: int) -> Iterator[Batch]:
        """All positions and their colours, in an order of the seed's."""
        positions, colours = flower(self.height, self.width)
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(positions), generator=generator)
            yield positions[order], colours[order]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error of the colours."""
        positions, colours = batch
        return F.mse_loss(model(positions), colours)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """log10 of the mean squared error over all pixels."""
        return float(self.loss(model, flower(self.height, self.width)).log10())


COORDINATES = CoordinateTask(
    name="coordinates",
    title="coordinate net, full batch",
    steps=1000,
    recipe=Recipe(
        learning_rate=1e-2,
        rates=(0.005, 0.01, 0.02, 0.04, 0.08),
        betas=(0.9, 0.99),
        weight_decay=0.0,
        gradient_clip=None,
    ),
)
