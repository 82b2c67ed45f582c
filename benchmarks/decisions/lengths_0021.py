"""What fixed and fitted lengths of predicted steps cost where training has far to travel.

``python -m benchmarks.decisions.lengths_0021`` trains a residual perceptron on scikit-learn's
diabetes data, whose target has a mean of 150 and is not scaled, at small learning rates, and writes
``docs/results/lengths-0021.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_diabetes  # type: ignore[import-untyped]
from torch import Tensor, nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.runs.runtime import environment, write_json

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "lengths-0021.json"

_OTHERS = ("hidden", "vector", "head")
ARMS: dict[str, tuple[float, Mapping[str, Any] | None]] = {
    "full": (1.0, None),
    "short": (2 / 3, None),
    "corrected, short": (2 / 3, {"speedup": 1}),
    "momentum": (1.0, {"predictors": {"hidden": "momentum"}}),
    "fitted": (1.0, {"predictors": {"hidden": "fitted"}}),
    "fitted, vectors and head too": (1.0, {"predictors": dict.fromkeys(_OTHERS, "fitted")}),
}
"""Share of the steps, and arguments of `HybridConfig`; None without the plug-in."""

CASES = ((64, 300), (128, 300), (64, 600))
"""Widths and steps."""

RATE, BATCH, HELD, SEEDS = 1e-4, 64, 89, 3


class Block(nn.Module):
    """Two layers beside the identity.

    Args:
        width: Of all layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape and dtype stay."""
        return x + torch.as_tensor(self.second(torch.relu(self.first(self.norm(x)))))


def train(arm: str, width: int, steps: int, seed: int) -> dict[str, Any]:
    """One run; its held-out squared error as a share of the target's variance."""
    x, y = (torch.tensor(a, dtype=torch.float32) for a in load_diabetes(return_X_y=True))
    x = (x - x.mean(0)) / x.std(0)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    held, known = order[:HELD], order[HELD:]
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, width), Block(width), Block(width), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    share, plugin = ARMS[arm]
    total = round(steps * share)
    config = HybridConfig(total_steps=total, max_overhead=1e9, **(plugin or {"enabled": False}))
    engine = HybridEngine(net, optimizer, config)
    while not engine.done:
        rows = known[torch.randint(len(known), (BATCH,), generator=generator)]
        engine.before_step()
        loss = (net(x[rows])[:, 0] - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        engine.after_step(loss)
    with torch.no_grad():
        error = (net(x[held])[:, 0] - y[held]).square().mean() / y[held].var()
    return {"error": float(error), "full_steps": engine.ledger.full_steps}


def main() -> None:
    """Train every arm, and write the results file."""
    torch.set_num_threads(1)
    rows = [
        {"arm": arm, "width": width, "steps": steps, "seed": seed, **train(arm, width, steps, seed)}
        for width, steps in CASES
        for arm in ARMS
        for seed in range(SEEDS)
    ]
    write_json({"rate": RATE, "rows": rows, "environment": environment()}, RESULTS)
    for width, steps in CASES:
        for arm in ARMS:
            case = [r for r in rows if (r["width"], r["steps"], r["arm"]) == (width, steps, arm)]
            errors = ", ".join(f"{r['error']:.3f}" for r in case)
            print(f"{width} {steps} {arm}: {errors}; {case[0]['full_steps']} full steps")


if __name__ == "__main__":
    main()
