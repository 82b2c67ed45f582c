"""A denoising convolutional autoencoder with batch normalisation on patches of photographs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, RegressionTask
from benchmarks.tasks.photograph import load_photograph

_PHOTOGRAPHS = ("china.jpg", "flower.jpg")
_HELD_OUT = 0.25


@lru_cache(maxsize=1)
def load_grey() -> tuple[Tensor, Tensor]:
    """Return the left and the held-out right part of two grey photographs, values from 0 to 1.

    Both are float32, of shapes [2, 427, 480] and [2, 427, 160].
    """
    grey = torch.stack([load_photograph(name).mean(0) for name in _PHOTOGRAPHS])
    cut = round((1 - _HELD_OUT) * grey.shape[-1])
    return grey[..., :cut].contiguous(), grey[..., cut:].contiguous()


@dataclass(frozen=True, kw_only=True)
class AutoencoderTask(RegressionTask):
    """Remove white noise from patches of two photographs, whose right quarter is held out.

    Each of the encoder's layers halves the patch; grey values go from 0 to 1.
    """

    metric = "log10 of the validation mean squared error"

    patch: int = 32
    channels: tuple[int, ...] = (16, 32, 32)
    noise: float = 0.05
    batch_size: int = 32

    def net(self) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((1, *self.channels)):
            down = nn.Conv2d(before, after, 4, stride=2, padding=1, bias=False)
            layers += [down, nn.BatchNorm2d(after), nn.ReLU()]
        for before, after in pairwise(reversed(self.channels)):
            up = nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False)
            layers += [up, nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.ConvTranspose2d(self.channels[0], 1, 4, 2, 1))

    def batches(self, seed: int) -> Iterator[Batch]:
        """Noisy and clean patches, each of shape [batch_size, 1, patch, patch]."""
        generator = torch.Generator().manual_seed(seed)
        patches = load_grey()[0].unfold(1, self.patch, 1).unfold(2, self.patch, 1)
        while True:
            where = (
                torch.randint(size, (self.batch_size,), generator=generator)
                for size in patches.shape[:3]
            )
            yield self._noisy(patches[tuple(where)], generator)

    def _noisy(self, clean: Tensor, generator: torch.Generator) -> Batch:
        noise = self.noise * torch.randn(clean.shape, generator=generator)
        return (clean + noise)[:, None], clean[:, None]

    def judged(self) -> Batch:
        """All held-out patches, with fixed noise."""
        patches = load_grey()[1].unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        return self._noisy(patches.flatten(0, 2), torch.Generator().manual_seed(0))


AUTOENCODER = AutoencoderTask(
    name="autoencoder",
    title="denoising autoencoder with batch normalisation",
    steps=800,
    recipe=Recipe(learning_rate=1e-3, rates=(0.004, 0.008, 0.016, 0.032)),
)
