"""A small LightningModule and its data, which the other examples in this folder train.

It has no code for hybrid_predict. Run one of the others, for example:
python examples/by_feature/speedup.py
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Waves(L.LightningModule):
    """Learns the sine of a sum; its schedule follows the length of the Trainer's run."""

    def __init__(self, width: int = 64, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(
            nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class WavesData(L.LightningDataModule):
    """Random points, the same in every run."""

    def __init__(self, batch_size: int = 256) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, x.sum(1, keepdim=True).sin())
        return DataLoader(data, self.batch_size)


def train(*callbacks: Any, model: Any = None, ckpt_path: Any = None, **options: Any) -> L.Trainer:
    """Train from a fixed seed; ``options`` are arguments of the Trainer."""
    L.seed_everything(0, verbose=False)
    quiet = {
        "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_model_summary": False, "enable_progress_bar": False,
    }  # fmt: skip
    trainer = L.Trainer(callbacks=list(callbacks), **{"max_steps": 300, **quiet, **options})
    trainer.fit(model or Waves(), datamodule=WavesData(), ckpt_path=ckpt_path)
    return trainer
