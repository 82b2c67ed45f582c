"""A residual net with batch normalisation on handwritten digits, trained in one cycle."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, seeded
from benchmarks.tasks.digits import DigitsTask

_CLASSES = 10


class ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions beside a shortcut (He et al., 2016).

    Args:
        before: Channels of the input.
        after: Channels of the output. Where there are more of them the image is halved, and the
            shortcut is a normalised 1x1 convolution.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            across = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(across, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape [N, after, side, side] or half the side for [N, before, side, side]."""
        inside = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inside)) + self.shortcut(x))


@dataclass(frozen=True, kw_only=True)
class ResidualTask(DigitsTask):
    """Digits with a small residual net.

    Args:
        channels: Channels of the stem and of each residual block.
    """

    channels: tuple[int, ...] = (16, 16, 32, 64)

    def model(self, seed: int) -> nn.Module:
        """A normalised convolution, residual blocks, average pooling, and a linear layer."""
        return seeded(self._net, seed)

    def _net(self) -> nn.Module:
        stem = self.channels[0]
        layers = [nn.Conv2d(1, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU()]
        blocks = [ResidualBlock(before, after) for before, after in pairwise(self.channels)]
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*layers, *blocks, *pool, nn.Linear(self.channels[-1], _CLASSES))


RESNET = ResidualTask(
    name="resnet",
    title="residual net with batch normalisation on digits",
    steps=500,
    batch_size=128,
    recipe=Recipe(
        learning_rate=1e-3,
        rates=(0.002, 0.004, 0.008, 0.016, 0.032),
        betas=(0.9, 0.999),
        schedule="one-cycle",
        warmup_fraction=0.3,
    ),
)
