"""Photographs: nets from positions to colours, and an autoencoder that removes noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, RegressionTask, drawn, grid, perceptron


@lru_cache(maxsize=2)
def load_photograph(name: str) -> Tensor:
    """Return scikit-learn's photograph, colours from 0 to 1, float32 of shape [3, 427, 640]."""
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]

    return torch.tensor(load_sample_image(name)).permute(2, 0, 1).float() / 255


@lru_cache(maxsize=2)
def pixels(name: str, height: int, width: int) -> Batch:
    """Return centres (down, right) in [0, 1], [pixels, 2], and colours of a photograph made small.

    The colours, [pixels, 3], are means over areas; all float32, row by row.
    """
    small = F.interpolate(load_photograph(name)[None], (height, width), mode="area")[0]
    centres = [(torch.arange(size) + 0.5) / size for size in (height, width)]
    return torch.cartesian_prod(*centres), small.flatten(1).T.contiguous()


class Waves(nn.Module):
    r"""Positions as waves of fixed frequencies, in periods per unit.

    .. math:: \gamma(x) = [\cos 2\pi B x, \sin 2\pi B x]
    """

    frequencies: Tensor

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies)

    def forward(self, positions: Tensor) -> Tensor:
        phases = 2 * math.pi * positions @ self.frequencies
        return torch.cat((phases.cos(), phases.sin()), dim=1)


@dataclass(frozen=True, kw_only=True)
class ImageTask(RegressionTask):
    """Fit one photograph with a net from positions to colours, which carry no noise."""

    metric = "log10 of the mean squared error over all pixels"

    height: int
    width: int
    widths: tuple[int, ...]

    @abstractmethod
    def frequencies(self) -> Tensor:
        """Return B of the net's waves, of shape [2, waves]."""

    def net(self) -> nn.Module:
        waves = self.frequencies()
        return nn.Sequential(Waves(waves), *perceptron(2 * waves.shape[1], *self.widths, 3))


@dataclass(frozen=True, kw_only=True)
class PhotographTask(ImageTask):
    """A Fourier-feature MLP (Tancik et al., 2020) on random pixels; normal frequencies."""

    steps: int = 800
    recipe: Recipe = Recipe(rates=grid(0.004, 4), weight_decay=0.0)
    height: int = 96
    width: int = 144
    waves: int = 128
    scale: float = 6.0
    widths: tuple[int, ...] = (128, 128, 128)
    batch_size: int = 1536

    def frequencies(self) -> Tensor:
        return self.scale * torch.randn(2, self.waves)

    def judged(self) -> Batch:
        return pixels("china.jpg", self.height, self.width)

    def batches(self, seed: int) -> Iterator[Batch]:
        return drawn(self.judged(), self.batch_size, seed)


@dataclass(frozen=True, kw_only=True)
class CoordinateTask(ImageTask):
    """All pixels in every step, at high rates; frequencies double (Mildenhall et al., 2020)."""

    steps: int = 1000
    recipe: Recipe = Recipe(
        learning_rate=1e-2,
        rates=grid(0.005, 5),
        betas=(0.9, 0.99),
        weight_decay=0.0,
        gradient_clip=None,
    )
    height: int = 48
    width: int = 72
    octaves: int = 6
    widths: tuple[int, ...] = (64, 64, 64)

    def frequencies(self) -> Tensor:
        return torch.kron(torch.eye(2), 2.0 ** torch.arange(-1, self.octaves - 1)[None])

    def judged(self) -> Batch:
        positions, colours = pixels("flower.jpg", self.height, self.width)
        return 2 * positions - 1, colours

    def batches(self, seed: int) -> Iterator[Batch]:
        positions, colours = self.judged()
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(positions), generator=generator)
            yield positions[order], colours[order]


INR = PhotographTask("inr", "implicit representation of a photograph")
COORDINATES = CoordinateTask("coordinates", "coordinate net, full batch")


@dataclass(frozen=True, kw_only=True)
class AutoencoderTask(RegressionTask):
    """Remove white noise from patches of two photographs, whose right quarter is held out."""

    metric = "log10 of the validation mean squared error"

    steps: int = 800
    recipe: Recipe = Recipe(rates=grid(0.004, 4))
    patch: int = 32
    channels: tuple[int, ...] = (16, 32, 32)
    noise: float = 0.05
    batch_size: int = 32

    def net(self) -> nn.Module:
        layers: list[nn.Module] = []
        wider = [(nn.Conv2d, *pair) for pair in pairwise((1, *self.channels))]
        narrower = [(nn.ConvTranspose2d, *pair) for pair in pairwise(reversed(self.channels))]
        for kind, before, after in (*wider, *narrower):
            convolution = kind(before, after, 4, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.ConvTranspose2d(self.channels[0], 1, 4, 2, 1))

    def _patches(self, columns: slice, step: int) -> Tensor:
        grey = torch.stack([load_photograph(name).mean(0) for name in ("china.jpg", "flower.jpg")])
        return grey[..., columns].unfold(1, self.patch, step).unfold(2, self.patch, step)

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        patches = self._patches(slice(480), 1)
        shape = (self.batch_size,)
        while True:
            where = [torch.randint(n, shape, generator=generator) for n in patches.shape[:3]]
            yield self._noisy(patches[tuple(where)], generator)

    def _noisy(self, clean: Tensor, generator: torch.Generator) -> Batch:
        noise = self.noise * torch.randn(clean.shape, generator=generator)
        return (clean + noise)[:, None], clean[:, None]

    def judged(self) -> Batch:
        patches = self._patches(slice(480, None), self.patch)
        return self._noisy(patches.flatten(0, 2), torch.Generator().manual_seed(0))


AUTOENCODER = AutoencoderTask("autoencoder", "denoising autoencoder with batch normalisation")
