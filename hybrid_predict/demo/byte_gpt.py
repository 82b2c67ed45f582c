"""A byte-level GPT as an ordinary LightningModule, its data, and its training as an audit."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.errors import ConfigError

_FEWEST_BYTES = 1_000_000
"""Smallest size of the text."""

_BATCH = 32
_CONTEXT = 64
"""Windows in a batch, and bytes in a window."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the command's options change in the training of the ``full`` arm."""

    steps: int = 600
    learning_rate: float = 0.008
    validation_windows: int = 512

    def __post_init__(self) -> None:
        if self.steps < 20:
            raise ConfigError("steps", "an integer, at least 20", self.steps)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError("learning_rate", "a finite number above 0", self.learning_rate)


FULL = Recipe(steps=1800, learning_rate=0.0113, validation_windows=2048)
"""Three times the steps, with the learning rate that is best for them."""


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a layer norm and inside a residual sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Update the residual stream, of shape [batch, context, width]."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(dim=2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        output: Tensor = x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))
        return output


class ByteGPT(pl.LightningModule):
    """A decoder-only transformer that predicts the next byte.

    Its learning rate rises linearly to its peak, then falls to zero after all ``steps``.
    """

    def __init__(
        self, steps: int, learning_rate: float, layers: int = 3, heads: int = 2, width: int = 64
    ) -> None:
        super().__init__()
        self.steps = steps
        self.learning_rate = learning_rate
        self.token_embedding = nn.Embedding(256, width)
        self.position_embedding = nn.Embedding(_CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        # GPT-2's initial weights: two sums per block must not let the residual stream grow.
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                residual = name.endswith(("attention_out", "mlp_out"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * layers if residual else 1))
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape [batch, context, 256] for bytes of shape [batch, context]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the cross-entropy in nats per byte."""
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the cross-entropy in nats per byte."""
        self.log("val_loss", self._loss(batch), batch_size=len(batch))

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

    def _loss(self, batch: Tensor) -> Tensor:
        logits = self(batch[:, :-1].int())
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten().long())


def stdlib_text() -> tuple[Tensor, Tensor]:
    """Return training and validation bytes of the standard library's source text, as uint8.

    Every Python has it, so nothing is downloaded. Every tenth module is for validation.
    """
    root = Path(sysconfig.get_path("stdlib"))
    parts = (bytearray(), bytearray())
    for number, path in enumerate(sorted(root.glob("*.py"))):
        parts[number % 10 == 9].extend(path.read_bytes())
    if sum(map(len, parts)) < _FEWEST_BYTES:
        expected = f"at least {_FEWEST_BYTES:,} bytes of .py files in {root}"
        remedy = "Use a Python installation that has its standard library as .py files."
        got = f"{sum(map(len, parts)):,} bytes"
        raise ConfigError("standard library source text", expected, got, remedy)
    train, validation = (torch.frombuffer(part, dtype=torch.uint8) for part in parts)
    return train, validation


class StdlibWindows(pl.LightningDataModule):
    """Windows of bytes in random order for training, and evenly spaced ones for validation.

    Each has one byte more than the context, so that every byte in it has a next one.
    """

    def __init__(
        self, train: Tensor, validation: Tensor, seed: int, validation_windows: int
    ) -> None:
        super().__init__()
        self.train = train.unfold(0, _CONTEXT + 1, _CONTEXT)
        windows = validation.unfold(0, _CONTEXT + 1, _CONTEXT)
        self.validation = windows[:: max(1, len(windows) // validation_windows)]
        self.seed = seed

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Return the windows in an order that depends on the seed."""
        generator = torch.Generator().manual_seed(self.seed)
        return DataLoader(self.train, _BATCH, shuffle=True, generator=generator)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Return the fixed windows."""
        return DataLoader(self.validation, _BATCH)  # type: ignore[arg-type]


def demo_audit(recipe: Recipe) -> tuple[MakeRun, dict[str, Any]]:
    """Return ``make_run`` and ``source`` for :func:`hybrid_predict.audit.audit`."""
    train, validation = stdlib_text()

    def make_run(arm: AuditArm) -> Any:
        steps = arm.scaled(recipe.steps)
        trainer = arm.trainer(
            max_steps=recipe.steps,
            gradient_clip_val=1.0,
            accelerator="cpu",
            devices=1,
            log_every_n_steps=max(1, min(50, steps // 10)),
            val_check_interval=max(1, steps // 4),
            check_val_every_n_epoch=None,
        )
        model = ByteGPT(steps, recipe.learning_rate)
        return trainer, model, StdlibWindows(train, validation, arm.seed, recipe.validation_windows)

    digest = hashlib.sha256(train.numpy().tobytes() + validation.numpy().tobytes()).hexdigest()
    text = {"sha256": digest, "train_bytes": len(train), "validation_bytes": len(validation)}
    return make_run, {"recipe": asdict(recipe), "text": text}
