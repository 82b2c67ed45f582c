"""What a forecast adds to a full step as the batch grows: runs of decision 9.

    python docs/decisions/batches_0009.py

Alternating blocks of full steps with and without forecasts in one process and one thread, and the
operations counted; writes docs/results/batches-0009.json.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sweep import Measure, Rows, study, train

from hybrid_predict.bench import step_cost
from hybrid_predict.tasks import TASKS

TASK_NAMES, FACTORS = ("gpt-0.2m", "mlp", "cnn"), (1, 4, 16)


def run(name: str, factor: int) -> dict[str, Any]:
    """Ratio of times and share of operations for batches so many times as large."""
    torch.set_num_threads(1)
    task: Any = TASKS[name]
    task = replace(task, batch_size=factor * task.batch_size)
    found = step_cost.measure(task, blocks=8, length=8)
    _, engine = train(replace(task, steps=12), 0.001, {"count_flops": True}, seed=0)
    ledger = engine.ledger
    assert ledger.flops_per_step and ledger.flops_per_forecast
    return {
        "task": name,
        "batch": task.batch_size,
        "plain_ms": found["plain_ms"],
        "ratio": found["ratio"],
        "quartiles": found["quartiles"],
        "operations": ledger.flops_per_forecast / ledger.flops_per_step,
    }


def table(found: Rows) -> str:
    """One line per task and batch."""
    lines = [
        "| task | batch | plain full step, ms | with a forecast | operations of a forecast |",
        "|" + "---|" * 5,
    ]
    for row in found:
        low, high = row["quartiles"]
        cells = [
            f"`{row['task']}`", f"{row['batch']:,}", f"{row['plain_ms']:.1f}",
            f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]", f"{row['operations']:.1%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rows(measure: Measure) -> Rows:
    """Every task with every batch."""
    found = measure(run, [(name, factor) for name in TASK_NAMES for factor in FACTORS])
    return list(found.values())


if __name__ == "__main__":
    study("batches-0009", rows, table, __doc__, seeds=(0,))
