"""Forecasts while a whole pretrained model is fine-tuned: runs of decision 10.

    python docs/decisions/tuning_0010.py [--jobs N]

The language model of the task `lora`, all of its weights trained, at rates from far too low to too
high; writes docs/results/tuning-0010.json.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from sweep import SEEDS, Measure, Rows, study, train
from torch import nn

from hybrid_predict.tasks import TASKS
from hybrid_predict.tasks.byte_gpt import ByteGPT
from hybrid_predict.tasks.lora import LowRankTask, base_state

RATES = (0.0001, 0.0004, 0.0016, 0.0064)


@dataclass(frozen=True, kw_only=True)
class WholeTask(LowRankTask):
    """The same without adapters."""

    def _net(self) -> nn.Module:
        model = ByteGPT(self.base().shape())
        model.load_state_dict(base_state(self.base()))
        return model


def _task() -> WholeTask:
    lora = TASKS["lora"]
    return WholeTask(name="whole", title="whole model", steps=300, recipe=lora.recipe)


ARMS: dict[str, dict[str, Any]] = {
    "plain, T": {"enabled": False},
    "plain, T/1.5": {"enabled": False, "total_steps": 200},
    "hybrid": {},
    "hybrid, speedup auto": {"speedup": "auto"},
}


def run(arm: str, rate: float, seed: int) -> tuple[float, float]:
    """Final loss and cost."""
    task = _task()
    model, engine = train(task, rate, ARMS[arm], seed)
    return task.final_loss(model), engine.ledger.cost


def table(found: Rows) -> str:
    """Final losses by arm and rate, full steps of the arm that chooses them in brackets."""
    heads = " | ".join(f"{rate:g}" for rate in RATES)
    lines = [f"| arm | {heads} |", "|" + "---|" * (len(RATES) + 1)]
    for arm in ARMS:
        own = {row["rate"]: row for row in found if row["arm"] == arm}
        cells = [f"{own[rate]['loss']:.4f} ({own[rate]['cost']:.0f})" for rate in RATES]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rows(measure: Measure) -> Rows:
    """Mean final losses and costs over seeds, by arm and rate."""
    runs = measure(run, [(arm, rate, seed) for arm in ARMS for rate in RATES for seed in SEEDS])
    found = []
    for arm in ARMS:
        for rate in RATES:
            losses, costs = zip(*(runs[arm, rate, seed] for seed in SEEDS), strict=True)
            found.append({"arm": arm, "rate": rate, "loss": statistics.fmean(losses),
                          "cost": statistics.fmean(costs)})  # fmt: skip
    return found


if __name__ == "__main__":
    study("tuning-0010", rows, table, __doc__)
