"""Manual optimization: the module steps optimizer and scheduler itself.

Look at: training_step, which needs no change. One call is one full step. The callback steps the
scheduler for predicted steps, so that it ends where it would without them.

Run with: python examples/by_feature/manual_optimization.py (about 8 seconds on one core)
"""

from __future__ import annotations

from typing import Any

import lightning as L
from torch import Tensor
from torch.nn import functional as F
from waves import Waves, train

from hybrid_predict import HybridPredict


class ManualWaves(Waves):
    """Steps its optimizer in its own training step, with clipped gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.mse_loss(self.net(x), y))
        self.clip_gradients(optimizer, 1.0, gradient_clip_algorithm="norm")
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()


def main() -> tuple[HybridPredict, L.Trainer]:
    callback = HybridPredict(speedup=1.5)
    trainer = train(callback, model=ManualWaves())
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    print(f"{callback.ledger}; learning rate at the end {rate:.2g}")
    return callback, trainer


if __name__ == "__main__":
    main()
