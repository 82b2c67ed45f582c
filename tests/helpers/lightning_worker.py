"""A run in a process of its own that is there to be killed.

Run with: python tests/helpers/lightning_worker.py FOLDER
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_models import Net, SeededLoader, Ungated, fit

from hybrid_predict import HybridPredict

STEPS, EVERY = 240, 6


class Slowly(Callback):
    """Takes time over every batch, so that a run is met on its way."""

    def on_train_batch_end(self, *args: Any) -> None:
        time.sleep(0.004)


def train(folder: Path, *more: L.Callback, **options: Any) -> tuple[HybridPredict, Net]:
    """A run that keeps its last checkpoint only, within one long epoch."""
    save = ModelCheckpoint(
        folder, "{step}", every_n_train_steps=EVERY, save_top_k=1, save_on_exception=True
    )
    callback = Ungated(lag=2, cooldown_steps=0.2)
    train = SeededLoader(1000)
    _, model = fit([callback, *more, save], train=train, max_steps=STEPS, **options)
    return callback, model


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    train(Path(sys.argv[1]), Slowly())
    time.sleep(600)  # a parent that comes late still has something to kill
