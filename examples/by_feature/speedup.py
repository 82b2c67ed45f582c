"""The number of predicted steps: speedup, or full_steps and predict_steps.

Look at: all runs end at step 300 with the same schedule. speedup=1 corrects but predicts nothing;
1.5 plans a predicted step in every three, 2 in every two; full_steps=3, predict_steps=1 sets the
pattern directly. Fewer are taken than planned, because none are taken before skill is known.

Run with: python examples/by_feature/speedup.py (about 10 seconds on one core)
"""

from __future__ import annotations

from waves import train

from hybrid_predict import HybridPredict

CHOICES = ({"speedup": 1}, {"speedup": 1.5}, {"speedup": 2}, {"full_steps": 3, "predict_steps": 1})


def main() -> list[HybridPredict]:
    callbacks = [HybridPredict(**chosen) for chosen in CHOICES]
    for callback in callbacks:
        trainer = train(callback)
        loss = float(trainer.callback_metrics["train_loss"])
        print(f"{callback!r}: {callback.ledger}; loss {loss:.4f}")
    return callbacks


if __name__ == "__main__":
    main()
