"""speedup="auto": let the run decide how many predicted steps follow each full step.

Look at: the plan in the first line, how many predicted steps were taken, and the last line: the
advance is how many lengths of the drift they added to each full step in the end.

Run with: python examples/by_feature/auto.py (about 8 seconds on one core)
"""

from __future__ import annotations

from waves import train

from hybrid_predict import HybridPredict


def main() -> HybridPredict:
    callback = HybridPredict(speedup="auto")
    train(callback)
    skill = callback.ledger.skills["hidden"]
    print(f"persistence {skill['persistence']:.2f}, advance {skill['advance']:.2f}")
    return callback


if __name__ == "__main__":
    main()
