"""Forecasts on top of other optimizers than AdamW and Muon: the runs of decision 12.

    python docs/decisions/bases_0012.py [--jobs N]

Every optimizer gets the best of three rates for plain training of T full steps, and keeps it in the
other arms; writes docs/results/bases-0012.json.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from sweep import SEEDS, Measure, Rows, study, train
from torch import nn
from torch.optim import SGD, Adafactor, Optimizer, RMSprop

from hybrid_predict.bench.arms import Rates, trainable
from hybrid_predict.tasks import TASKS, Recipe

BASES: dict[str, tuple[Any, tuple[float, ...]]] = {
    "SGD, momentum 0.9": (partial(SGD, momentum=0.9), (0.03, 0.1, 0.3)),
    "RMSprop": (RMSprop, (0.001, 0.003, 0.01)),
    "Adafactor": (Adafactor, (0.01, 0.03, 0.1)),
}
"""What makes the optimizer, and the rates tried."""

CHOSEN = ("cnn", "inr")


def _make(name: str, model: nn.Module, recipe: Recipe, rates: Rates, _: int) -> list[Optimizer]:
    made: Optimizer = BASES[name][0](trainable(model), lr=rates.base)
    return [made]


def run(base: str, task_name: str, arm: str, rate: float, seed: int) -> float:
    """Final loss."""
    task = TASKS[task_name]
    arms: dict[str, dict[str, Any]] = {
        "plain, T": {"enabled": False},
        "plain, T/1.5": {"enabled": False, "total_steps": round(task.steps / 1.5)},
        "hybrid": {},
    }
    model, _ = train(task, rate, arms[arm], seed, build=partial(_make, base))
    return task.final_loss(model)


def table(found: Rows) -> str:
    """Final losses of the arms at the best rate."""
    lines = [
        "| optimizer | task | rate | plain, T | plain, T/1.5 | hybrid, T/1.5 |",
        "|" + "---|" * 6,
    ]
    for row in found:
        losses = " | ".join(f"{row[arm]:.4f}" for arm in ("plain, T", "plain, T/1.5", "hybrid"))
        lines.append(f"| {row['base']} | `{row['task']}` | {row['rate']:g} | {losses} |")
    return "\n".join(lines)


def rows(measure: Measure) -> Rows:
    """Mean final losses over seeds, by optimizer and task, at the best rate."""

    def losses(cells: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], float]:
        runs = measure(run, [(*cell, seed) for cell in cells for seed in SEEDS])
        return {cell: statistics.fmean(runs[(*cell, s)] for s in SEEDS) for cell in cells}

    pairs = [(base, task) for base in BASES for task in CHOSEN]
    plain = losses([(*pair, "plain, T", rate) for pair in pairs for rate in BASES[pair[0]][1]])
    best = {
        (base, task): min((plain[base, task, "plain, T", r], r) for r in BASES[base][1])[1]
        for base, task in pairs
    }
    rest = [(*pair, arm, best[pair]) for pair in pairs for arm in ("plain, T/1.5", "hybrid")]
    plain.update(losses(rest))
    return [
        {"base": base, "task": task, "rate": rate,
         **{arm: plain[base, task, arm, rate] for arm in ("plain, T", "plain, T/1.5", "hybrid")}}
        for (base, task), rate in best.items()
    ]  # fmt: skip


if __name__ == "__main__":
    study("bases-0012", rows, table, __doc__)
