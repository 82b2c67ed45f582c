"""Gradient accumulation: a full step is a whole window of batches.

Look at: steps are counted in updates, as max_steps counts them. Predicted steps come before the
first batch of a window, so with windows of 4 each one saves 4 batches.

Run with: python examples/by_feature/accumulation.py (about 15 seconds on one core)
"""

from __future__ import annotations

from waves import train

from hybrid_predict import HybridPredict


def main(window: int = 4) -> tuple[HybridPredict, int]:
    callback = HybridPredict(speedup=1.5)
    trainer = train(callback, accumulate_grad_batches=window)
    batches = trainer.fit_loop.epoch_loop.batch_progress.total.completed
    print(f"{callback.ledger}; {batches} batches instead of {window * callback.ledger.steps}")
    return callback, batches


if __name__ == "__main__":
    main()
