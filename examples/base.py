"""A small GPT that reads Python's own source text, trained plainly, then with one line added.

Look at: the last two lines. With the callback the run takes fewer full steps and fewer seconds, and
ends with a lower loss. The schedule advances as many steps as without it.

Run with: python examples/base.py (about a minute on one idle core)
"""

import sysconfig
import time
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hybrid_predict import HybridPredict

CONTEXT = 64  # bytes that the model sees


class ByteGPT(L.LightningModule):
    """Predicts the next byte; its learning rate falls to 0 at the end of the Trainer's run."""

    def __init__(self, width=64, layers=2, learning_rate=4e-3):
        super().__init__()
        self.learning_rate = learning_rate
        self.letters, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def loss(self, batch):
        text = batch[0].long()
        x = self.letters(text[:, :-1]) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, x.device)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class PythonText(L.LightningDataModule):
    """The source text of Python's standard library; the last tenth is for validation."""

    def setup(self, stage):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = torch.frombuffer(bytearray().join(f.read_bytes() for f in files), dtype=torch.uint8)
        windows = text.unfold(0, CONTEXT + 1, CONTEXT)
        first = len(windows) * 9 // 10
        self.train, self.val = windows[:first], windows[first:][:1024]

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.train), 64, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(self.val), 256)


def build(*callbacks, steps=300):
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        max_steps=steps,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=CSVLogger("logs", name=None),
        log_every_n_steps=10,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    return trainer, ByteGPT(), PythonText()


def train(*callbacks, steps=300):
    """Train; return what it took, and the validation loss at the end."""
    trainer, model, data = build(*callbacks, steps=steps)
    start = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - start
    (measured,) = trainer.validate(model, data, verbose=False)
    return f"{seconds:.0f} s, validation loss {measured['val_loss']:.3f}"


def main(steps=300):
    plain = train(steps=steps)
    callback = HybridPredict(speedup=1.5)  # the added line
    helped = train(callback, steps=steps)
    print(f"plain:         {steps} full steps, {plain}")
    print(f"HybridPredict: {callback.ledger.full_steps} full steps, {helped}")
    return callback


if __name__ == "__main__":
    main()
