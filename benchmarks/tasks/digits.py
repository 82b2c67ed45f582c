"""Handwritten digits, 8x8 pixels: convolutional, residual and fully connected nets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, Task, perceptron

_SIDE = 8
_CLASSES = 10
# Mean and standard deviation of the training images' grey values.
_MEAN = 0.305
_SPREAD = 0.376


@lru_cache(maxsize=1)
def load_digits() -> tuple[Batch, Batch]:
    """scikit-learn's digits for training, and the same stratified quarter of them held out.

    Images are float32 of shape [N, 1, 8, 8] from 0 to 1, classes int64 of shape [N].
    """
    from sklearn.datasets import load_digits as sklearn_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    pixels, labels = sklearn_digits(return_X_y=True)
    split = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    train, val = (torch.tensor(part).float().view(-1, 1, _SIDE, _SIDE) / 16 for part in split[:2])
    train_labels, val_labels = (torch.tensor(part).long() for part in split[2:])
    return (train, train_labels), (val, val_labels)


def augment(images: Tensor, shift: int, noise: float, generator: torch.Generator) -> Tensor:
    """Move each image by its own whole number of pixels, add white noise, and normalise.

    Images are of shape [N, 1, side, side], grey values from 0 to 1; what moves in from outside is
    0. The results have about zero mean and unit variance.
    """
    count, _, side, _ = images.shape
    padded = F.pad(images, [shift] * 4).squeeze(1)
    first = torch.randint(2 * shift + 1, (2, count, 1), generator=generator)
    rows, columns = first + torch.arange(side)
    moved = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    noisy = moved + noise * torch.randn(moved.shape, generator=generator)
    return ((noisy - _MEAN) / _SPREAD).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class DigitsTask(Task):
    """Classify augmented digits; fresh noise in every batch keeps the net from overfitting."""

    metric = "validation loss (nats per image)"

    batch_size: int
    shift: int = 2
    noise: float = 0.2
    validation_copies: int = 8

    def batches(self, seed: int) -> Iterator[Batch]:
        """Augmented images of shape [batch_size, 1, 8, 8] and their classes."""
        generator = torch.Generator().manual_seed(seed)
        images, labels = load_digits()[0]
        while True:
            chosen = torch.randint(len(images), (self.batch_size,), generator=generator)
            changed = augment(images[chosen], self.shift, self.noise, generator)
            yield changed, labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images), labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        images, labels = load_digits()[1]
        generator = torch.Generator().manual_seed(0)
        copies = [
            self.loss(model, (augment(images, self.shift, self.noise, generator), labels))
            for _ in range(self.validation_copies)
        ]
        return float(torch.stack(copies).mean())


@dataclass(frozen=True, kw_only=True)
class ConvolutionTask(DigitsTask):
    """Digits with 3x3 convolutions without normalisation; all but the first halve the image."""

    channels: tuple[int, ...] = (16, 32, 32)

    def net(self) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((1, *self.channels)):
            stride = 1 if before == 1 else 2
            layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.ReLU()]
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*layers, *pool, nn.Linear(self.channels[-1], _CLASSES))


@dataclass(frozen=True, kw_only=True)
class PerceptronTask(DigitsTask):
    """Digits with a multilayer perceptron."""

    widths: tuple[int, ...] = (256, 256, 256)

    def net(self) -> nn.Module:
        hidden = perceptron(_SIDE**2, *self.widths)
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(self.widths[-1], _CLASSES))


class ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions beside a shortcut (He et al., 2016).

    With other channels after it the image is halved, and the shortcut is a normalised 1x1
    convolution.
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
    """Digits with a small residual net; ``channels`` are those of the stem and of each block."""

    channels: tuple[int, ...] = (16, 16, 32, 64)

    def net(self) -> nn.Module:
        stem = self.channels[0]
        layers = [nn.Conv2d(1, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU()]
        blocks = [ResidualBlock(before, after) for before, after in pairwise(self.channels)]
        pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*layers, *blocks, *pool, nn.Linear(self.channels[-1], _CLASSES))


CNN = ConvolutionTask(
    name="cnn",
    title="convolutional net on digits",
    steps=800,
    batch_size=256,
    recipe=Recipe(learning_rate=1e-3, rates=(0.008, 0.016, 0.032, 0.064)),
)

MLP = PerceptronTask(
    name="mlp",
    title="multilayer perceptron on digits",
    steps=800,
    batch_size=384,
    recipe=Recipe(learning_rate=1e-3, rates=(0.002, 0.004, 0.008, 0.016)),
)

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
