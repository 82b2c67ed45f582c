"""Whether the average of the last weights is better than the last weights: decision 11.

    python docs/decisions/tails_0011.py [--jobs N]

Averages base weights over the last part of default runs and compares final losses, batch-norm
statistics taken anew; writes docs/results/tails-0011.json.
"""

from __future__ import annotations

import copy
import statistics

from earlier import earlier
from sweep import RATES, SEEDS, Measure, Rows, study, train
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hybrid_predict.bench.train import refresh_batch_norm
from hybrid_predict.tasks import TASKS, Task

PARTS = (0.05, 0.1, 0.2)
"""Shares of the full steps over which weights are averaged."""


def refreshed(task: Task, model: nn.Module, seed: int) -> nn.Module:
    """A copy with batch-norm statistics of 50 training batches."""
    model = copy.deepcopy(model).train()
    refresh_batch_norm(task, model, task.batches(seed + 1), count=50)
    return model


def losses(task_name: str, seed: int) -> list[float]:
    """Final losses of the last weights and of the average over each part."""
    task = TASKS[task_name]
    steps = round(task.steps / 1.5)
    averages: dict[float, AveragedModel] = {}
    taken = 0

    def each(model: nn.Module, loss: float) -> None:
        nonlocal taken
        taken += 1
        for part in PARTS:
            if taken > (1 - part) * steps:
                averages.setdefault(part, AveragedModel(model)).update_parameters(model)

    model, _ = train(task, RATES[task_name], earlier(), seed, each)
    models = [model, *(averages[part].module for part in PARTS)]
    return [task.final_loss(refreshed(task, m, seed)) for m in models]


def table(found: Rows) -> str:
    """Final losses by task."""
    heads = [f"last {part:.0%}" for part in PARTS]
    lines = [f"| task | last weights | {' | '.join(heads)} |", "|---|" + "---|" * (len(PARTS) + 1)]
    lines += [
        f"| `{row['task']}` | {' | '.join(f'{x:.4f}' for x in row['losses'])} |" for row in found
    ]
    return "\n".join(lines)


def rows(measure: Measure) -> Rows:
    """Mean final losses over seeds, by task."""
    runs = measure(losses, [(task, seed) for task in RATES for seed in SEEDS])
    return [
        {"task": task, "losses": list(map(statistics.fmean, zip(*own, strict=True)))}
        for task in RATES
        for own in [[runs[task, seed] for seed in SEEDS]]
    ]


if __name__ == "__main__":
    study("tails-0011", rows, table, __doc__)
