"""Kinds of parameters: what is corrected and predicted, and how patterns change it.

Look at: the first line of each run. By default hidden matrices are corrected and predicted. A
pattern over names leaves the first layer to the optimizer; updates={} corrects nothing at all.

Run with: python examples/by_feature/kinds.py (about 8 seconds on one core)
"""

from __future__ import annotations

from typing import Any

from waves import train

from hybrid_predict import HybridPredict

CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"kinds": {"net.0.weight": "embedding"}},
    {"updates": {}, "predictors": {"hidden": "momentum", "head": "momentum"}},
)


def main() -> list[HybridPredict]:
    callbacks = [HybridPredict(**chosen) for chosen in CHOICES]
    for callback in callbacks:
        train(callback)
        print(f"{callback!r}: {callback.ledger}")
    return callbacks


if __name__ == "__main__":
    main()
