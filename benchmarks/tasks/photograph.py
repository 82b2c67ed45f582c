"""Nets that map positions to the colours of a photograph: random pixels, and full batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, RegressionTask, drawn, perceptron
from hybrid_predict.errors import MissingExtraError


@lru_cache(maxsize=2)
def load_photograph(name: str) -> Tensor:
    """Return scikit-learn's photograph, colours from 0 to 1, float32 of shape [3, 427, 640]."""
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]

    try:
        pixels = load_sample_image(name)
    except ImportError as error:
        raise MissingExtraError("A task on photographs", "cli") from error
    return torch.tensor(pixels).permute(2, 0, 1).float() / 255


@lru_cache(maxsize=2)
def pixels(name: str, height: int, width: int) -> Batch:
    """Every pixel of a photograph after area averaging to a smaller size.

    Returns positions of the centres in [0, 1], (down, right), float32 of shape [height * width, 2],
    and colours, float32 of shape [height * width, 3], row by row.
    """
    small = F.interpolate(load_photograph(name)[None], (height, width), mode="area")[0]
    centres = [(torch.arange(size) + 0.5) / size for size in (height, width)]
    return torch.cartesian_prod(*centres), small.flatten(1).T.contiguous()


class FourierFeatures(nn.Module):
    r"""Positions as waves of random, fixed frequencies (Tancik et al., 2020).

    .. math:: \gamma(x) = [\cos 2\pi B x, \sin 2\pi B x], \quad B_{ij} \sim N(0, \sigma^2)

    with sigma = ``scale``, in periods per image side.
    """

    frequencies: Tensor

    def __init__(self, waves: int, scale: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", scale * torch.randn(2, waves))

    def forward(self, positions: Tensor) -> Tensor:
        """Features of shape [N, 2 * waves] for positions of shape [N, 2]."""
        phases = 2 * math.pi * positions @ self.frequencies
        return torch.cat((phases.cos(), phases.sin()), dim=1)


class Octaves(nn.Module):
    r"""Positions as waves whose frequencies double (Mildenhall et al., 2020).

    .. math:: \gamma(x) = [\cos 2^k \pi x, \sin 2^k \pi x], \quad k = 0, \dots, L - 1
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
class ImageTask(RegressionTask):
    """Fit one photograph with a net from positions to colours.

    The metric is on the pixels that the net is trained on: they carry no noise.
    """

    metric = "log10 of the mean squared error over all pixels"

    height: int
    width: int
    widths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PhotographTask(ImageTask):
    """Fit a photograph with a Fourier-feature MLP on random pixels."""

    height: int = 96
    width: int = 144
    waves: int = 128
    scale: float = 6.0
    widths: tuple[int, ...] = (128, 128, 128)
    batch_size: int = 1536

    def net(self) -> nn.Module:
        features = FourierFeatures(self.waves, self.scale)
        hidden = perceptron(2 * self.waves, *self.widths)
        return nn.Sequential(features, *hidden, nn.Linear(self.widths[-1], 3))

    def judged(self) -> Batch:
        return pixels("china.jpg", self.height, self.width)

    def batches(self, seed: int) -> Iterator[Batch]:
        return drawn(self.judged(), self.batch_size, seed)


@dataclass(frozen=True, kw_only=True)
class CoordinateTask(ImageTask):
    """Fit a photograph with a coordinate net at high rates; every step sees every pixel."""

    height: int = 48
    width: int = 72
    octaves: int = 6
    widths: tuple[int, ...] = (64, 64, 64)

    def net(self) -> nn.Module:
        hidden = perceptron(4 * self.octaves, *self.widths)
        return nn.Sequential(Octaves(self.octaves), *hidden, nn.Linear(self.widths[-1], 3))

    def judged(self) -> Batch:
        positions, colours = pixels("flower.jpg", self.height, self.width)
        return 2 * positions - 1, colours

    def batches(self, seed: int) -> Iterator[Batch]:
        positions, colours = self.judged()
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(positions), generator=generator)
            yield positions[order], colours[order]


INR = PhotographTask(
    name="inr",
    title="implicit representation of a photograph",
    steps=800,
    recipe=Recipe(learning_rate=1e-3, rates=(0.004, 0.008, 0.016, 0.032), weight_decay=0.0),
)

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
