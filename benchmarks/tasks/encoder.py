"""Fine-tuning a pre-trained transformer encoder on handwritten digits, at small rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, Recipe, trained_state
from benchmarks.tasks.digits import DigitsTask, augment, load_digits

_CLASSES = 10
_TURNS = 4


class PatchEncoder(nn.Module):
    """A transformer encoder over an image's patches (Dosovitskiy et al., 2021), with a head."""

    def __init__(self, layers: int, heads: int, width: int, patch: int, outputs: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.position_embedding = nn.Parameter(0.02 * torch.randn((8 // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs of shape [N, outputs] for images of shape [N, 1, 8, 8]."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        states = self.encoder(tokens + self.position_embedding)
        outputs: Tensor = self.head(states.mean(1))
        return outputs


@dataclass(frozen=True, kw_only=True)
class EncoderTask(DigitsTask):
    """Classify digits with an encoder that was pre-trained to predict the rotation of an image."""

    small: ClassVar = {"base_steps": 12}

    layers: int = 3
    heads: int = 4
    width: int = 64
    patch: int = 2
    base_steps: int = 600

    def net(self) -> nn.Module:
        """The pre-trained encoder, all of it trainable, with a new linear layer."""
        model = self.encoder(_CLASSES)
        model.load_state_dict(self.base_state(), strict=False)
        return model

    def encoder(self, outputs: int) -> PatchEncoder:
        """Return an untrained encoder with so many outputs."""
        return PatchEncoder(self.layers, self.heads, self.width, self.patch, outputs)

    def base_state(self) -> dict[str, Tensor]:
        """Return the weights of an encoder that predicts rotations, without its linear layer."""
        inherited = {n: getattr(self, n) for n in ("layers", "heads", "width", "patch", "shift",
                                                   "noise")}  # fmt: skip
        state = trained_state(replace(ROTATIONS, steps=self.base_steps, **inherited))
        return {name: value for name, value in state.items() if not name.startswith("head.")}


@final
@dataclass(frozen=True, kw_only=True)
class RotationTask(EncoderTask):
    """Predict rotations by 0, 90, 180 or 270 degrees (Gidaris, 2018), without labels of digits."""

    def net(self) -> nn.Module:
        return self.encoder(_TURNS)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Turned images of shape [batch_size, 1, 8, 8], and by how many quarters."""
        generator = torch.Generator().manual_seed(seed)
        images = load_digits()[0][0]
        turns = torch.arange(self.batch_size) % _TURNS
        while True:
            chosen = torch.randint(len(images), (self.batch_size,), generator=generator)
            upright = augment(images[chosen], self.shift, self.noise, generator)
            turned = [x.rot90(int(k), (1, 2)) for x, k in zip(upright, turns, strict=True)]
            yield torch.stack(turned), turns


ROTATIONS = RotationTask(
    name="rotations",
    title="encoder that predicts rotations",
    steps=600,
    batch_size=64,
    recipe=Recipe(learning_rate=2e-3, rates=(), betas=(0.9, 0.999)),
)

ENCODER = EncoderTask(
    name="encoder",
    title="pre-trained encoder fine-tuned on digits",
    steps=1000,
    batch_size=8,
    shift=1,
    noise=0.1,
    recipe=Recipe(
        learning_rate=5e-5,
        rates=(0.0001, 0.0002, 0.0004, 0.0008, 0.0016),
        betas=(0.9, 0.999),
        warmup_fraction=0.1,
    ),
)
