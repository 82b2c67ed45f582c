"""Fine-tuning a pre-trained transformer encoder on handwritten digits, at small rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, linear_schedule, seeded
from benchmarks.tasks.digits import DigitsTask, augment, load_digits

_CLASSES, _TURNS = 10, 4
_PRETRAINING_RATE, _PRETRAINING_BATCH = 2e-3, 64


class PatchEncoder(nn.Module):
    """A transformer encoder over an image's patches (Dosovitskiy et al., 2021), and a linear layer.

    Args:
        layers: Encoder layers.
        heads: Attention heads.
        width: Width of the residual stream.
        patch: Rows and columns of a patch; divides those of an image, which are 8.
        outputs: Outputs of the linear layer, which takes the mean over patches.
    """

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
    """Classify digits with an encoder that was pre-trained to predict the rotation of an image.

    Args:
        layers: Encoder layers.
        heads: Attention heads.
        width: Width of the residual stream.
        patch: Rows and columns of a patch.
        base_steps: Steps of the pre-training, which is done once per process.
    """

    layers: int = 3
    heads: int = 4
    width: int = 64
    patch: int = 2
    base_steps: int = 600

    def model(self, seed: int) -> nn.Module:
        """The pre-trained encoder, all of it trainable, with a new linear layer."""
        return seeded(self._net, seed)

    def _net(self) -> nn.Module:
        model = self.untrained(_CLASSES)
        model.load_state_dict(pretrained(self), strict=False)
        return model

    def untrained(self, outputs: int) -> PatchEncoder:
        """An encoder with so many outputs, from the global source of randomness."""
        return PatchEncoder(self.layers, self.heads, self.width, self.patch, outputs)

    def tiny(self) -> Task:
        """The same task for a few steps, its pre-training included."""
        return replace(self, steps=12, base_steps=12)


@lru_cache(maxsize=2)
def pretrained(task: EncoderTask) -> dict[str, Tensor]:
    """Weights of an encoder that predicts rotations by 0, 90, 180 or 270 degrees (Gidaris, 2018).

    Args:
        task: Whose encoder it is, how long it is trained, and how images are augmented; always from
            the same seed, without any label of a digit.

    Returns:
        Its state dict without the linear layer; the same tensors on every call in this process.
    """
    model = seeded(lambda: task.untrained(_TURNS), 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PRETRAINING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, linear_schedule(task.base_steps, 0.05))
    generator, images = torch.Generator().manual_seed(0), load_digits().train
    turns = torch.arange(_PRETRAINING_BATCH) % _TURNS
    for _ in range(task.base_steps):
        chosen = torch.randint(len(images), (_PRETRAINING_BATCH,), generator=generator)
        upright = augment(images[chosen], task.shift, task.noise, generator)
        turned = torch.stack([x.rot90(k, (1, 2)) for x, k in zip(upright, turns, strict=True)])
        loss = F.cross_entropy(model(turned), turns)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    state = model.state_dict()
    return {name: value.clone() for name, value in state.items() if not name.startswith("head.")}


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
