"""Handwritten digits, 8x8 pixels: convolutional, residual and fully connected nets, encoders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, ClassificationTask, Recipe, grid, perceptron, trained_state

_SIDE = 8
_CLASSES = 10
_TURNS = 4
# Mean and standard deviation of the training images' grey values.
_MEAN = 0.305
_SPREAD = 0.376


@lru_cache(maxsize=1)
def load_digits() -> tuple[Batch, Batch]:
    """Return scikit-learn's digits, float32 [N, 1, 8, 8] from 0 to 1, a fixed quarter held out."""
    from sklearn.datasets import load_digits as sklearn_digits  # type: ignore[import-untyped]
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

    pixels, labels = sklearn_digits(return_X_y=True)
    split = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    train, val = (torch.tensor(part).float().view(-1, 1, _SIDE, _SIDE) / 16 for part in split[:2])
    train_labels, val_labels = (torch.tensor(part).long() for part in split[2:])
    return (train, train_labels), (val, val_labels)


def augment(images: Tensor, shift: int, noise: float, generator: torch.Generator) -> Tensor:
    """Move images, [N, 1, side, side], by whole pixels, fill with 0, add noise, and normalise."""
    count, _, side, _ = images.shape
    padded = F.pad(images, [shift] * 4).squeeze(1)
    first = torch.randint(2 * shift + 1, (2, count, 1), generator=generator)
    rows, columns = first + torch.arange(side)
    moved = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    noisy = moved + noise * torch.randn(moved.shape, generator=generator)
    return ((noisy - _MEAN) / _SPREAD).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class DigitsTask(ClassificationTask):
    """Classify augmented digits; fresh noise in every batch keeps the net from overfitting."""

    metric = "validation loss (nats per image)"

    batch_size: int
    shift: int = 2
    noise: float = 0.2
    validation_copies: int = 8

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        images, labels = load_digits()[0]
        while True:
            chosen = torch.randint(len(images), (self.batch_size,), generator=generator)
            yield augment(images[chosen], self.shift, self.noise, generator), labels[chosen]

    def evaluate(self, model: nn.Module) -> float:
        images, labels = load_digits()[1]
        generator = torch.Generator().manual_seed(0)
        copies = [
            self.loss(model, (augment(images, self.shift, self.noise, generator), labels))
            for _ in range(self.validation_copies)
        ]
        return float(torch.stack(copies).mean())


def _classifier(channels: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _CLASSES)


@dataclass(frozen=True, kw_only=True)
class ConvolutionTask(DigitsTask):
    """Digits with 3x3 convolutions without normalisation; all but the first halve the image."""

    steps: int = 800
    batch_size: int = 256
    recipe: Recipe = Recipe(rates=grid(0.008, 4))
    channels: tuple[int, ...] = (16, 32, 32)

    def net(self) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((1, *self.channels)):
            stride = 1 if before == 1 else 2
            layers += [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, *_classifier(self.channels[-1]))


@dataclass(frozen=True, kw_only=True)
class PerceptronTask(DigitsTask):
    """Digits with a multilayer perceptron."""

    steps: int = 800
    batch_size: int = 384
    recipe: Recipe = Recipe(rates=grid(0.002, 4))
    widths: tuple[int, ...] = (256, 256, 256)

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *perceptron(_SIDE**2, *self.widths, _CLASSES))


class ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions beside a shortcut (He et al., 2016).

    With other channels after it the image is halved, and the shortcut has a 1x1 convolution.
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
        inside = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inside)) + self.shortcut(x))


@dataclass(frozen=True, kw_only=True)
class ResidualTask(DigitsTask):
    """Digits with a small residual net; ``channels`` are those of the stem and of each block."""

    steps: int = 500
    batch_size: int = 128
    recipe: Recipe = Recipe(
        rates=grid(0.002, 5), betas=(0.9, 0.999), schedule="one-cycle", warmup_fraction=0.3
    )
    channels: tuple[int, ...] = (16, 16, 32, 64)

    def net(self) -> nn.Module:
        stem = self.channels[0]
        layers = [nn.Conv2d(1, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU()]
        blocks = [ResidualBlock(before, after) for before, after in pairwise(self.channels)]
        return nn.Sequential(*layers, *blocks, *_classifier(self.channels[-1]))


class PatchEncoder(nn.Module):
    """A transformer encoder over an image's patches (Dosovitskiy et al., 2021), with a head."""

    def __init__(self, layers: int, heads: int, width: int, patch: int, outputs: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.position_embedding = nn.Parameter(0.02 * torch.randn((8 // patch) ** 2, width))
        options: Any = {"activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, **options)
        self.encoder = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        states = self.encoder(tokens + self.position_embedding)
        return self.head(states.mean(1))


@dataclass(frozen=True, kw_only=True)
class EncoderTask(DigitsTask):
    """Classify digits with an encoder. It was trained before to tell how an image is rotated."""

    small: ClassVar = {"base_steps": 12}

    steps: int = 1000
    batch_size: int = 8
    shift: int = 1
    noise: float = 0.1
    recipe: Recipe = Recipe(
        learning_rate=5e-5, rates=grid(0.0001, 5), betas=(0.9, 0.999), warmup_fraction=0.1
    )
    layers: int = 3
    heads: int = 4
    width: int = 64
    patch: int = 2
    base_steps: int = 600

    def net(self) -> nn.Module:
        names = ("layers", "heads", "width", "patch", "shift", "noise")
        inherited = {name: getattr(self, name) for name in names}
        state = trained_state(replace(ROTATIONS, steps=self.base_steps, **inherited))
        kept = {name: value for name, value in state.items() if not name.startswith("head.")}
        model = self.encoder(_CLASSES)
        model.load_state_dict(kept, strict=False)
        return model

    def encoder(self, outputs: int) -> PatchEncoder:
        """Return an untrained encoder with so many outputs."""
        return PatchEncoder(self.layers, self.heads, self.width, self.patch, outputs)


@dataclass(frozen=True, kw_only=True)
class RotationTask(EncoderTask):
    """Predict rotations by 0, 90, 180 or 270 degrees (Gidaris, 2018), without labels of digits."""

    steps: int = 600
    batch_size: int = 64
    recipe: Recipe = Recipe(learning_rate=2e-3, betas=(0.9, 0.999))

    def net(self) -> nn.Module:
        return self.encoder(_TURNS)

    def batches(self, seed: int) -> Iterator[Batch]:
        turns = torch.arange(self.batch_size) % _TURNS
        for upright, _ in super().batches(seed):
            turned = [x.rot90(int(k), (1, 2)) for x, k in zip(upright, turns, strict=True)]
            yield torch.stack(turned), turns


CNN = ConvolutionTask("cnn", "convolutional net on digits")
MLP = PerceptronTask("mlp", "multilayer perceptron on digits")
RESNET = ResidualTask("resnet", "residual net with batch normalisation on digits")
ROTATIONS = RotationTask("rotations", "encoder that predicts rotations")
ENCODER = EncoderTask("encoder", "pre-trained encoder fine-tuned on digits")
