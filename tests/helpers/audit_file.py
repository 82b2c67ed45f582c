"""A file that ``hybrid-predict audit`` reads, and the module that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

MODULE = '''
import json
import torch
from torch.utils.data import DataLoader, TensorDataset
import lightning as L

class Line(L.LightningModule):
    """Notes the lengths that it was given, one line per training."""

    def __init__(self, total_steps: int = 18, out: str = "seen.txt"):
        super().__init__()
        self.total_steps, self.out = total_steps, out
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))

    def loss(self, batch):
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def on_train_start(self):
        found = self.lr_schedulers()
        seen = [self.total_steps, self.trainer.max_steps, getattr(found, "T_max", None)]
        with open(self.out, "a") as file:
            print(json.dumps(seen), file=file)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

class Data(L.LightningDataModule):
    def loader(self):
        return DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)

    train_dataloader = val_dataloader = loader
'''

FILE: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "lines.Line", "init_args": {"total_steps": 18}},
    "data": {"class_path": "lines.Data"},
    "trainer": {"max_steps": 18, "accelerator": "cpu"},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
    "lr_scheduler": {
        "class_path": "torch.optim.lr_scheduler.CosineAnnealingLR", "init_args": {"T_max": 9},
    },
    "audit": {
        "metric": "val_loss", "seeds": 1, "hybrid": {"warmup_steps": 5}, "mlflow": False,
        "scaled": ["model.init_args.total_steps", "lr_scheduler.init_args.T_max"],
    },
}  # fmt: skip


def write(content: Any) -> str:
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    Path("file.yaml").write_text(text)
    return "file.yaml"


def seen() -> list[Any]:
    return [json.loads(line) for line in Path("seen.txt").read_text().splitlines()]


def without(*keys: str) -> dict[str, Any]:
    return {k: v for k, v in FILE.items() if k not in keys}


def with_audit(**options: Any) -> dict[str, Any]:
    return {**FILE, "audit": {**FILE["audit"], **options}}
