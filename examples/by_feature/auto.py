"""speedup="auto": let the library choose how many predicted steps to plan.

Look at: the plan in the first line, and how many of these steps were taken: predicted steps are
taken only while forecasts have skill.

Run with: python examples/by_feature/auto.py (about 8 seconds on one core)
"""

from __future__ import annotations

from waves import train

from hybrid_predict import HybridPredict


def main() -> HybridPredict:
    callback = HybridPredict(speedup="auto")
    train(callback)
    skill = callback.ledger.skills["hidden"]
    print(f"skill {skill['mean']:.2f}, at least {skill['lower']:.2f}: {callback.ledger}")
    return callback


if __name__ == "__main__":
    main()
