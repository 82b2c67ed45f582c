"""A classifier with few weights in hidden matrices: python -m benchmarks.decisions.few_hidden_0039.

Every finished run is a line of ``docs/results/few-hidden-0039.jsonl``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import RESULTS
from hybrid_predict import HybridConfig, HybridTrainer, OptimizerWrapper, TorchModel
from hybrid_predict.runs.runtime import threads

PATH, STEPS = RESULTS / "few-hidden-0039.jsonl", 768
RATES = (0.001, 0.003, 0.01, 0.03)
INPUTS, WIDTH, CLASSES, BATCH, HELD_OUT = 16, 32, 400, 128, 8192


class Arm(NamedTuple):
    """Arguments of the configuration, and the length as a share of STEPS."""

    options: dict[str, Any]
    share: float = 1.0


ARMS = {
    "plain": Arm({"enabled": False}),
    "plain, 2/3": Arm({"enabled": False}, 2 / 3),
    "corrected": Arm({"speedup": 1}),
    "corrected, 2/3": Arm({"speedup": 1}, 2 / 3),
    "hybrid": Arm({}),
    "auto": Arm({"speedup": "auto"}),
}


def net() -> nn.Sequential:
    """A net with a tenth of its weights between hidden layers."""
    return nn.Sequential(
        nn.Linear(INPUTS, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
        nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


class Classes:
    """Normal inputs; the class is the largest of random sums of the tanh of mixed inputs."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._mix = torch.randn(INPUTS, INPUTS, generator=self._random)
        self._directions = torch.randn(INPUTS, CLASSES, generator=self._random)

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return inputs and classes."""
        x = torch.randn(rows, INPUTS, generator=self._random)
        return x, ((x @ self._mix).tanh() @ self._directions).argmax(1)


def loss(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross entropy of a batch."""
    return F.cross_entropy(module(batch[0]), batch[1])


def train(arm: str, rate: float, seed: int) -> dict[str, Any]:
    """Train once, and return the loss on held-out examples and full steps."""
    torch.manual_seed(seed)
    module, data = net(), Classes(seed)
    held_out = data.batch(HELD_OUT)
    options, share = ARMS[arm]
    total = round(share * STEPS)
    optimizer = torch.optim.AdamW(module.parameters(), rate)
    trainer = HybridTrainer(
        TorchModel(module, loss),
        OptimizerWrapper(optimizer),
        HybridConfig(total_steps=total, **options),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total),
    )
    ledger = trainer.fit(data.batch(BATCH) for _ in range(total))
    with torch.no_grad():
        final = loss(module, held_out).item()
    return {"arm": arm, "rate": rate, "seed": seed, "loss": round(final, 4),
            "full_steps": ledger.full_steps, "predicted_steps": ledger.predicted_steps}  # fmt: skip


def missing(seeds: int) -> Iterator[tuple[str, float, int]]:
    """Return the runs that are not in the file."""
    lines = PATH.read_text("utf-8").splitlines() if PATH.exists() else []
    done = {(row["arm"], row["rate"], row["seed"]) for row in map(json.loads, lines)}
    return (key for key in product(ARMS, RATES, range(seeds)) if key not in done)


def main() -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser("python -m benchmarks.decisions.few_hidden_0039")
    parser.add_argument("--seeds", type=int, default=5)
    with threads(1):
        for key in missing(parser.parse_args().seeds):
            line = json.dumps(train(*key))
            print(line, flush=True)
            with PATH.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


if __name__ == "__main__":
    main()
