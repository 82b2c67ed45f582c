"""An implicit neural representation: a net that maps positions to the colours of a photograph."""

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
from hybrid_predict import MissingExtraError

Batch = tuple[Tensor, Tensor]


@lru_cache(maxsize=2)
def load_photograph(name: str) -> Tensor:
    """A photograph that scikit-learn ships.

    Args:
        name: ``"china.jpg"`` or ``"flower.jpg"``.

    Returns:
        Colours from 0 to 1, float32 of shape [3, 427, 640].

    Raises:
        MissingExtraError: If the package that reads JPEG files is not installed.
    """
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]

    try:
        pixels = load_sample_image(name)
    except ImportError as error:
        raise MissingExtraError("A task on photographs", "cli") from error
    return torch.tensor(pixels).permute(2, 0, 1).float() / 255


@lru_cache(maxsize=1)
def pixel_table(height: int, width: int) -> Batch:
    """Every pixel of the photograph after area averaging to a smaller size.

    Args:
        height: Rows.
        width: Columns.

    Returns:
        Positions of the pixel centres in [0, 1], (down, right), float32 of shape
        [height * width, 2], and colours, float32 of shape [height * width, 3], row by row.
    """
    image = load_photograph("china.jpg")
    small = F.interpolate(image[None], (height, width), mode="area")[0]
    centres = [(torch.arange(size) + 0.5) / size for size in (height, width)]
    return torch.cartesian_prod(*centres), small.flatten(1).T.contiguous()


class FourierFeatures(nn.Module):
    r"""Positions as waves of random, fixed frequencies (Tancik et al., 2020).

    .. math:: \gamma(x) = [\cos 2\pi B x, \sin 2\pi B x], \quad B_{ij} \sim N(0, \sigma^2)

    Args:
        waves: Number of frequencies.
        scale: Their standard deviation, in periods per image side.
    """

    frequencies: Tensor

    def __init__(self, waves: int, scale: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", scale * torch.randn(2, waves))

    def forward(self, positions: Tensor) -> Tensor:
        """Features of shape [N, 2 * waves] for positions of shape [N, 2]."""
        phases = 2 * math.pi * positions @ self.frequencies
        return torch.cat((phases.cos(), phases.sin()), dim=1)


@dataclass(frozen=True, kw_only=True)
class PhotographTask(Task):
    """Fit one photograph with a Fourier-feature MLP.

    The metric is on the pixels that the net is trained on: they carry no noise, and fitting them is
    all that is asked of such a net.

    Args:
        height: Rows of the photograph.
        width: Its columns.
        waves: Random frequencies.
        scale: Their standard deviation, in periods per image side.
        widths: Units of the hidden layers.
        batch_size: Random pixels in a batch.
    """

    metric = "log10 of the mean squared error over all pixels"

    height: int = 96
    width: int = 144
    waves: int = 128
    scale: float = 6.0
    widths: tuple[int, ...] = (128, 128, 128)
    batch_size: int = 1536

    def model(self, seed: int) -> nn.Module:
        """Fourier features, linear layers with ReLU, and three colours."""
        return seeded(self._net, seed)

    def _net(self) -> nn.Module:
        layers: list[nn.Module] = [FourierFeatures(self.waves, self.scale)]
        for before, after in pairwise((2 * self.waves, *self.widths)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.widths[-1], 3))

    def batches(self, seed: int) -> Iterator[Batch]:
        """Positions of shape [batch_size, 2] and their colours, [batch_size, 3]."""
        generator = torch.Generator().manual_seed(seed)
        positions, colours = pixel_table(self.height, self.width)
        while True:
            chosen = torch.randint(len(positions), (self.batch_size,), generator=generator)
            yield positions[chosen], colours[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error of the colours."""
        positions, colours = batch
        return F.mse_loss(model(positions), colours)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """log10 of the mean squared error over all pixels."""
        return float(self.loss(model, pixel_table(self.height, self.width)).log10())


INR = PhotographTask(
    name="inr",
    title="implicit representation of a photograph",
    steps=800,
    recipe=Recipe(learning_rate=1e-3, rates=(0.004, 0.008, 0.016, 0.032), weight_decay=0.0),
)
