"""How many steps are predicted: speedup, or full_steps and predict_steps.

Look at: all runs end at step 300 with the same schedule. speedup=1 corrects and predicts nothing;
1.5 plans every third step as a predicted one, 2 every second; full_steps=3, predict_steps=1 says
directly what comes after what. Fewer are made than planned: none before skill is known.

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
