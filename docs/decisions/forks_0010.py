"""What changing the horizon in the middle of a run does, and how soon: the forks of decision 10.

    python docs/decisions/forks_0010.py [--jobs N]

Trains every task with a horizon of 1 and, on the same batches, with another one from full step 100
on; writes docs/results/forks-0010.json.
"""

from __future__ import annotations

import statistics
from typing import Any, ClassVar

from earlier import earlier
from sweep import RATES, SEEDS, Measure, Rows, study, train
from torch import nn

from hybrid_predict import FixedHorizon
from hybrid_predict.tasks import TASKS

FORK = 100
"""The full step after which the horizon changes."""

BINS = ((0, 20), (20, 40), (40, 80), (80, 160))
"""Full steps after the fork over which losses are averaged."""


class Switched(FixedHorizon):
    """A horizon of 1 that becomes another one."""

    now: ClassVar[float] = 1.0

    def horizons(self, state: Any) -> list[float]:
        """One horizon for all tensors."""
        return [Switched.now] * len(state)


def losses(task_name: str, horizon: float, seed: int) -> list[float]:
    """Training losses of one run, and in the end its final loss."""
    found: list[float] = []

    def each(model: nn.Module, loss: float) -> None:
        found.append(loss)
        Switched.now = horizon if len(found) >= FORK else 1.0

    Switched.now = 1.0
    task, changes = TASKS[task_name], earlier(horizon=Switched(updates=1.0))
    model, _ = train(task, RATES[task_name], changes, seed, each)
    return [*found, task.final_loss(model)]


def table(found: Rows) -> str:
    """Loss differences from the runs that did not change, by full steps after the fork."""
    heads = [f"{a + 1} to {b}" for a, b in BINS]
    lines = [
        f"| task | horizon | {' | '.join(heads)} | at the end |",
        "|---|" + "---|" * (len(BINS) + 2),
    ]
    for row in found:
        cells = [f"{value:+.3f}" for value in row["differences"]]
        lines.append(f"| `{row['task']}` | 1 → {row['horizon']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rows(measure: Measure) -> Rows:
    """Mean differences over seeds, by task and horizon."""
    tasks, horizons = ("gpt-0.2m", "cnn", "inr", "mlp", "lora"), (1.0, 0.5, 2.0)
    runs = measure(losses, [(t, h, s) for t in tasks for h in horizons for s in SEEDS])
    found = []
    for task in tasks:
        for horizon in horizons[1:]:
            bins = []
            for first, last in (*BINS, (-1, None)):
                start, stop = (FORK + first, FORK + last) if last else (first, last)
                parts = [
                    statistics.fmean(runs[task, horizon, s][start:stop])
                    - statistics.fmean(runs[task, 1.0, s][start:stop])
                    for s in SEEDS
                ]
                bins.append(statistics.fmean(parts))
            found.append({"task": task, "horizon": horizon, "differences": bins})
    return found


if __name__ == "__main__":
    study("forks-0010", rows, table, __doc__)
