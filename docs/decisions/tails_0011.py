"""Whether the average of the last weights is better than the last weights: decision 11.

    python docs/decisions/tails_0011.py [--jobs N]

Averages base weights over the last part of default runs and compares final losses, batch-norm
statistics taken anew; writes docs/results/tails-0011.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from sweep import RATES, SEEDS, train
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hybrid_predict.tasks import TASKS, Task

FILE = Path(__file__).parent.parent / "results" / "tails-0011.json"
PARTS = (0.05, 0.1, 0.2)
"""Shares of the full steps over which weights are averaged."""


def refreshed(task: Task, model: nn.Module, seed: int) -> nn.Module:
    """A copy with batch-norm statistics of 50 training batches."""
    model, batches = copy.deepcopy(model).train(), task.batches(seed + 1)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    with torch.no_grad():
        for _ in range(50 if norms else 0):
            task.loss(model, next(batches))
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

    model, _ = train(task, RATES[task_name], {}, seed, each)
    models = [model, *(averages[part].module for part in PARTS)]
    return [task.final_loss(refreshed(task, m, seed)) for m in models]


def table(rows: list[dict[str, Any]]) -> str:
    """Final losses by task."""
    heads = [f"last {part:.0%}" for part in PARTS]
    lines = [f"| task | last weights | {' | '.join(heads)} |", "|---|" + "---|" * (len(PARTS) + 1)]
    lines += [
        f"| `{row['task']}` | {' | '.join(f'{x:.4f}' for x in row['losses'])} |" for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Run everything, write the file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    jobs = parser.parse_args().jobs
    cells = [(task, seed) for task in RATES for seed in SEEDS]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        runs = dict(zip(cells, pool.map(losses, *zip(*cells, strict=True)), strict=True))
    rows = [
        {"task": task, "losses": list(map(statistics.fmean, zip(*own, strict=True)))}
        for task in RATES
        for own in [[runs[task, seed] for seed in SEEDS]]
    ]
    FILE.write_text(json.dumps({"seeds": list(SEEDS), "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
