"""An ordinary LightningModule and LightningDataModule, without code for hybrid_predict.

Used by base.py, audit.py, audit.yaml and the notebook. Needs scikit-learn for the data.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsNet(L.LightningModule):
    """A small convolutional net; its schedule follows the length of the Trainer's run."""

    def __init__(self, width: int = 32, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * width, 10),
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return F.cross_entropy(self.net(shifted(images)), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", F.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Digits(L.LightningDataModule):
    """Scikit-learn's images of digits, 8 x 8 pixels; a fifth is held out for validation."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
        data = TensorDataset(images, torch.tensor(digits.target))
        self.train, self.val = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, 360)


def shifted(images: Tensor) -> Tensor:
    """Move every image by up to one pixel in each direction, at random.

    Without augmentation the net soon overfits to the 1400 images, and more steps do not help.
    """
    padded = F.pad(images[:, 0], (1, 1, 1, 1))
    rows, columns = (torch.randint(3, (len(images), 1)) + torch.arange(8) for _ in range(2))
    which = torch.arange(len(images))[:, None, None]
    return padded[which, rows[:, :, None], columns[:, None, :]].unsqueeze(1)
