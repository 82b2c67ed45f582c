"""An ordinary Lightning training with one line added: the callback.

Look at: the two lines that HybridPredict prints. The first says what is corrected and predicted,
the last how many steps were full and predicted. The schedule advances as many steps as without it.

Run with: pip install scikit-learn && python examples/base.py (about 15 seconds on one core)
"""

from __future__ import annotations

import lightning as L
from digits import Digits, DigitsNet

from hybrid_predict import HybridPredict


def main(max_epochs: int = 15) -> L.Trainer:
    L.seed_everything(0, verbose=False)
    callback = HybridPredict(speedup=1.5)  # the added line
    trainer = L.Trainer(
        max_epochs=max_epochs,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(DigitsNet(), Digits())
    ledger = callback.ledger
    print(f"{ledger.steps} steps, {ledger.full_steps} of them full steps")
    print(f"validation loss {float(trainer.callback_metrics['val_loss']):.4f}")
    return trainer


if __name__ == "__main__":
    main()
