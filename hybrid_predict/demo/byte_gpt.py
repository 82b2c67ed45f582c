"""A byte-level GPT as an ordinary LightningModule, and its data; ``audit.yaml`` audits them."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

_BATCH = 32
_CONTEXT = 64
_VALIDATION = 512
"""Windows in a batch, bytes in a window, and least number of windows for validation."""


class ByteGPT(pl.LightningModule):
    """A decoder-only transformer that predicts the next byte.

    Its learning rate rises linearly to its peak, then falls to zero after all ``steps``.
    """

    def __init__(self, steps: int, learning_rate: float, width: int = 64) -> None:
        super().__init__()
        self.steps = steps
        self.learning_rate = learning_rate
        self.token_embedding = nn.Embedding(256, width)
        self.position_embedding = nn.Embedding(_CONTEXT, width)
        block = nn.TransformerEncoderLayer(
            width, 2, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, 3, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 256, bias=False)
        past = nn.Transformer.generate_square_subsequent_mask(_CONTEXT)
        self.register_buffer("past", past, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per byte of windows [batch, context + 1]."""
        tokens = batch[:, :-1].int()
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        logits = self.head(self.blocks(x, mask=self.past, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten().long())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the loss."""
        loss: Tensor = self(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the loss."""
        self.log("val_loss", self(batch), batch_size=len(batch))

    def configure_optimizers(self) -> Any:
        """Return AdamW with the schedule."""
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
        )
        warmup = max(1, round(0.05 * self.steps))
        falling = max(1, self.steps - warmup)

        def share(step: int) -> float:
            return min((step + 1) / warmup, max(0.0, (self.steps - step) / falling))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class LibraryText(pl.LightningDataModule):
    """Windows of the standard library's source text; every tenth module is for validation."""

    def __init__(self) -> None:
        super().__init__()
        parts = (bytearray(), bytearray())
        for number, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
            parts[number % 10 == 9].extend(path.read_bytes())
        # One byte more than the context, so that every byte in it has a next one.
        texts = [torch.frombuffer(part, dtype=torch.uint8) for part in parts]
        self.train, validation = (text.unfold(0, _CONTEXT + 1, _CONTEXT) for text in texts)
        self.validation = validation[:: max(1, len(validation) // _VALIDATION)]

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Return batches in an order that depends on the seed."""
        return DataLoader(self.train, _BATCH, shuffle=True)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Return batches."""
        return DataLoader(self.validation, _BATCH)  # type: ignore[arg-type]
