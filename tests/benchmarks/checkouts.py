"""Compares what forecasts add to a full step in two checkouts, block by block in one process.

Run with, for example:
    git worktree add ../before 8e3d51f
    python tests/benchmarks/checkouts.py ../before . > docs/results/cost-0009.json
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

TASKS = ("gpt-0.2m", "cnn", "mlp", "inr")
LENGTH = 8
"""Full steps of a block."""


def loop(folder: Path, task: str, **changes: Any) -> Any:
    """The training loop of ``bench.step_cost``, with the package as it is in a folder."""
    for name in [n for n in sys.modules if n.split(".")[0] == "hybrid_predict"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder.resolve()))
    bench = importlib.import_module("hybrid_predict.bench.step_cost")
    tasks = importlib.import_module("hybrid_predict.tasks")
    package = importlib.import_module("hybrid_predict")
    sys.path.pop(0)
    assert Path(str(package.__file__)).is_relative_to(folder.resolve())
    made = bench._Loop(tasks.TASKS[task], forecasts=not changes)
    if changes:
        made.engine.detach()
        config = package.HybridConfig(total_steps=10**9, count_flops=False, **changes)
        made.engine = package.HybridEngine(made.model, made._optimizer, config)
    return made


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return statistics.quantiles(values, n=4)


def compare(before: Path, after: Path, task: str, blocks: int) -> dict[str, Any]:
    """Ratios to plain full steps, and what is added after over what was added before."""
    loops = {
        "plain": loop(after, task),
        "before": loop(before, task),
        "after": loop(after, task),
        "bfloat16": loop(after, task, history_dtype="bfloat16"),
    }
    # With more threads than one the processor time counts their waiting too.
    clock = process_time if torch.get_num_threads() == 1 else perf_counter

    def seconds(name: str) -> float:
        started = clock()
        for _ in range(LENGTH):
            loops[name].step(name != "plain")
        return clock() - started

    for name in loops:
        seconds(name)
    gc.collect()
    rows = [{name: seconds(name) for name in loops} for _ in range(blocks)]
    ratios = {name: quartiles([r[name] / r["plain"] for r in rows]) for name in loops}
    added = [(r["after"] - r["plain"]) / (r["before"] - r["plain"]) for r in rows]
    return {
        "task": task,
        "threads": torch.get_num_threads(),
        "plain_ms": 1e3 * statistics.median(r["plain"] for r in rows) / LENGTH,
        **{name: ratios[name] for name in ("before", "after", "bfloat16")},
        "added": quartiles(added),
    }


def main() -> dict[str, Any]:
    """Every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = [compare(chosen.before, chosen.after, task, chosen.blocks) for task in TASKS]
    versions = {"python": platform.python_version(), "torch": version("torch")}
    return {"length": LENGTH, "blocks": chosen.blocks, "rows": rows, "versions": versions}


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
