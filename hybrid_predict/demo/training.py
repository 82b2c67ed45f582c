"""A byte-level GPT on the standard library's source text as LightningModule and data module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hybrid_predict.demo.byte_gpt import ByteGPT, ByteGPTConfig
from hybrid_predict.demo.schedule import linear_schedule
from hybrid_predict.demo.text import StdlibText, sample_batch, validation_batches
from hybrid_predict.errors import ConfigError
from hybrid_predict.torch.kinds import hidden_and_rest

if TYPE_CHECKING:
    import lightning.pytorch as pl

Batch = tuple[Tensor, Tensor]

METRIC = "val_loss"
"""Name of the logged validation loss: mean cross-entropy in nats per byte."""


@dataclass(frozen=True, kw_only=True)
class DemoRecipe:
    """Model, data and optimizer of the demo; the same for every arm.

    Args:
        layers: Decoder blocks.
        heads: Attention heads.
        width: Width of the residual stream.
        context: Bytes in a window.
        batch_size: Windows in a batch.
        steps: Steps of the ``full`` arm, at least 20.
        learning_rate: Peak learning rate of AdamW.
        betas: AdamW's decay rates.
        weight_decay: AdamW's weight decay, on all parameters.
        gradient_clip: Norm that gradients are clipped to.
        warmup_fraction: Share of the schedule in which the learning rate rises linearly; then it
            falls linearly to zero.
        validation_windows: Windows in each validation.
        validations: Validations of the ``full`` arm before the last one.

    Raises:
        ConfigError: If a value is out of range.
    """

    layers: int = 3
    heads: int = 2
    width: int = 64
    context: int = 64
    batch_size: int = 32
    steps: int = 1800
    learning_rate: float = 0.0113
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    gradient_clip: float = 1.0
    warmup_fraction: float = 0.05
    validation_windows: int = 2048
    validations: int = 4

    def __post_init__(self) -> None:
        if self.steps < 20:
            raise ConfigError("steps", "an integer, at least 20", self.steps)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError("learning_rate", "a finite number above 0", self.learning_rate)
        if self.validation_windows < self.batch_size:
            expected = f"at least a batch of {self.batch_size}"
            raise ConfigError("validation_windows", expected, self.validation_windows)

    @classmethod
    def quick(cls) -> DemoRecipe:
        """Return a recipe with a third of the steps, and with the learning rate best for them."""
        return cls(steps=600, learning_rate=0.008, validation_windows=512)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data."""
        return {**asdict(self), "betas": list(self.betas)}


class TrainingBatches(IterableDataset[Batch]):
    """An endless stream of random windows, the same for the same seed.

    Args:
        data: Training bytes, uint8 of shape [num_bytes].
        recipe: Sizes of batches and windows.
        seed: Seed of the generator that draws the windows.
    """

    def __init__(self, data: Tensor, recipe: DemoRecipe, seed: int) -> None:
        self._data = data
        self._recipe = recipe
        self._seed = seed

    def __iter__(self) -> Iterator[Batch]:
        """Draw with a generator of its own, which starts anew."""
        generator = torch.Generator().manual_seed(self._seed)
        size, context = self._recipe.batch_size, self._recipe.context
        while True:
            yield sample_batch(self._data, size, context, generator)


class _Batches(Dataset[Batch]):
    """A dataset of finished batches."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        return self._batches[index]


def build_module(
    recipe: DemoRecipe, total_steps: int, seed: int, hidden_factor: float = 1.0
) -> pl.LightningModule:
    """Build an ordinary LightningModule, without any code for the callback.

    Args:
        recipe: Model and optimizer.
        total_steps: Steps of the schedule.
        seed: Seed of the initial weights.
        hidden_factor: Factor on the learning rate of the hidden matrices.

    Returns:
        The module with fresh weights; the global random state does not change.
    """
    import lightning.pytorch as pl

    class StdlibGPT(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            shape = (recipe.layers, recipe.heads, recipe.width, recipe.context)
            names = ("layers", "heads", "width", "context")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.model = ByteGPT(ByteGPTConfig(**dict(zip(names, shape, strict=True))))

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.model(tokens)
            return logits

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            loss = _loss(self, batch)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Batch, batch_idx: int) -> None:
            self.log(METRIC, _loss(self, batch), batch_size=len(batch[0]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(
                _groups(self.model, recipe.learning_rate, hidden_factor),
                lr=recipe.learning_rate,
                betas=recipe.betas,
                weight_decay=recipe.weight_decay,
            )
            factor = linear_schedule(total_steps, recipe.warmup_fraction)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    return StdlibGPT()


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def _groups(model: nn.Module, rate: float, hidden_factor: float) -> list[dict[str, Any]]:
    """Return one parameter group, or two if the hidden matrices have another rate."""
    if hidden_factor == 1.0:
        return [{"params": list(model.parameters())}]
    hidden, rest = hidden_and_rest(model)
    return [{"params": rest}, {"params": hidden, "lr": hidden_factor * rate}]


def build_data(recipe: DemoRecipe, text: StdlibText, seed: int) -> pl.LightningDataModule:
    """Build the data: endless random windows for training, fixed ones for validation.

    Args:
        recipe: Sizes of batches and windows.
        text: Training and validation bytes.
        seed: Seed of the generator that draws the training windows.
    """
    import lightning.pytorch as pl

    class StdlibWindows(pl.LightningDataModule):
        def train_dataloader(self) -> DataLoader[Batch]:
            return DataLoader(TrainingBatches(text.train, recipe, seed), batch_size=None)

        def val_dataloader(self) -> DataLoader[Batch]:
            size = recipe.batch_size
            number = recipe.validation_windows // size
            batches = validation_batches(text.val, size, recipe.context, number)
            return DataLoader(_Batches(batches), batch_size=None)

    return StdlibWindows()
