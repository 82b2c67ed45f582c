"""A byte-level GPT as an ordinary LightningModule, its data, and its training as an audit."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hybrid_predict.audit.arm import AuditArm, MakeRun

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


def demo_audit(full_steps: int, learning_rate: float) -> tuple[MakeRun, dict[str, Any]]:
    """Return ``make_run`` and ``source`` for :func:`hybrid_predict.audit.audit`.

    The data are the standard library's source text, which every Python has. Every tenth module is
    for validation. Training windows come in an order that depends on the seed.
    """
    parts = (bytearray(), bytearray())
    for number, path in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        parts[number % 10 == 9].extend(path.read_bytes())
    # One byte more than the context, so that every byte in it has a next one.
    texts = [torch.frombuffer(part, dtype=torch.uint8) for part in parts]
    train, validation = (text.unfold(0, _CONTEXT + 1, _CONTEXT) for text in texts)
    validation = validation[:: max(1, len(validation) // _VALIDATION)]

    def make_run(arm: AuditArm) -> Any:
        steps = arm.scaled(full_steps)
        trainer = arm.trainer(
            max_steps=full_steps,
            gradient_clip_val=1.0,
            accelerator="cpu",
            devices=1,
            log_every_n_steps=max(1, min(50, steps // 10)),
            val_check_interval=max(1, steps // 4),
            check_val_every_n_epoch=None,
        )
        order = torch.Generator().manual_seed(arm.seed)
        loaders: tuple[DataLoader[Tensor], DataLoader[Tensor]] = (
            DataLoader(train, _BATCH, shuffle=True, generator=order),  # type: ignore[arg-type]
            DataLoader(validation, _BATCH),  # type: ignore[arg-type]
        )
        return trainer, ByteGPT(steps, learning_rate), loaders

    digest = hashlib.sha256(parts[0] + parts[1]).hexdigest()
    recipe = {"steps": full_steps, "learning_rate": learning_rate}
    return make_run, {"recipe": recipe, "text": {"sha256": digest}}
