"""Checkpoints: a resumed run is identical to the uninterrupted one, bit for bit.

Look at: ModelCheckpoint and ckpt_path, which are used as always. The checkpoint contains the state
of the callback; it also loads without the callback.

Run with: python examples/by_feature/checkpoint.py (about 10 seconds on one core)
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from waves import Waves, train

from hybrid_predict import HybridPredict


def main() -> tuple[HybridPredict, bool]:
    first, second, resumed = Waves(), Waves(), HybridPredict()
    epochs = {"max_steps": -1, "max_epochs": 18}
    with TemporaryDirectory() as folder:
        save = ModelCheckpoint(folder, "{epoch}", every_n_epochs=9, save_top_k=-1)
        train(HybridPredict(), save, model=first, enable_checkpointing=True, **epochs)
        half = Path(folder) / "epoch=8.ckpt"
        train(resumed, model=second, ckpt_path=half, **epochs)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    same = all(torch.equal(a, b) for a, b in pairs)
    print(f"{resumed.ledger}; resumed run identical: {same}")
    return resumed, same


if __name__ == "__main__":
    main()
