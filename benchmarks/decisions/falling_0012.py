"""Limits of lengths that fall with the learning rate, for decision 12, and runs at other rates.

Variants with a limit are patches of commit f7c9542: run them in a checkout of it, with this file
beside its benchmarks. The others need no patch.
python -m benchmarks.decisions.falling_0012 ROWS JOBS TASKS:FACTORS:SEEDS:VARIANTS...
with names separated by commas; factors are on the best rate of plain training.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import load
from benchmarks import train as training
from benchmarks.arms import ARMS, Arm
from benchmarks.plan import Cell
from benchmarks.run import start_worker
from benchmarks.tasks import TASKS
from hybrid_predict.rules import length
from hybrid_predict.torch import lists
from hybrid_predict.updates import correct

LIMITS = {
    "limit": (0.02, False, 1.0),
    "falling": (0.02, True, 1.0),
    "falling, root": (0.02, True, 0.5),
    "falling, .03": (0.03, True, 1.0),
    "falling, .04": (0.04, True, 1.0),
    "no limit": (1e9, False, 1.0),
}
"""Limit in units of the root of the rows, whether it falls with the rate, and power of the factor,
by variant."""

SETTINGS: dict[str, dict[str, Any]] = {
    "corrected": {"speedup": 1},
    "default": {},
    "auto": {"speedup": "auto"},
}
"""Settings by variant, without a patch."""


def patch(usual: float, falls: bool, power: float) -> None:
    """Replace the rule of lengths."""
    rates = {"now": 0.0, "most": 0.0}
    write: Any = correct.Correction.write

    def noted(self: Any, values: Any, before: Any, options: Any, *rest: Any) -> None:
        rates["now"] = max(float(option.rate) for option in options)
        rates["most"] = max(rates.values())
        write(self, values, before, options, *rest)

    def lengths(self: Any, values: Any, before: Any, kept: Any, counts: Any) -> Any:
        own, along, slopes = lists.slopes(
            (values, before, kept), self.averages, self.directions, counts
        )
        own = torch.where(own.isfinite() & slopes.isfinite(), own, 0.0)
        each = torch.where(slopes < 0, along / torch.where(slopes < 0, own * slopes, 1.0), 1.0)
        each = torch.where(each.isfinite(), each, 1.0).clip(1.0, 6.0) ** power
        fall = rates["now"] / rates["most"] if falls else 1.0
        most = torch.tensor([usual * fall * rows**0.5 for rows in self.rows])
        new = torch.maximum(own, torch.minimum(own * each, most)) * self.period**length.LONGER
        return new, [None] * len(own) if all(own.tolist()) else (own == 0).unbind()

    correct.Correction.write = noted  # type: ignore[method-assign]
    correct.Correction._lengths = lengths  # type: ignore[method-assign]


def train(key: tuple[str, str, str, str]) -> dict[str, Any]:
    """Train one run, and return its row."""
    start_worker()
    name, factor, seed, variant = key
    settings = SETTINGS.get(variant, {"speedup": 1, "max_overhead": 1e9})
    if variant in LIMITS:
        patch(*LIMITS[variant])
    share = 1.0 if settings.get("speedup") == "auto" or not settings else 1 / 1.5
    ARMS["study"] = Arm(name="study", title="study", plugin=settings, share=share)
    task = TASKS[name]
    rate = _best()[name] * float(factor)
    cell = Cell(name, "tuned", "study", int(seed), rate, 1.0, True, task.steps, "")
    training.warm(task)
    run = training.Run(cell, task)
    run.train()
    row = {"task": name, "factor": float(factor), "seed": int(seed), "variant": variant}
    return {**row, **{k: run.result()[k] for k in ("loss", "full_steps")}}


def _best() -> dict[str, float]:
    rows = [
        row for suite in ("core", "wide", "fresh") for row in load(f"bench-{suite}.json")["runs"]
    ]
    return {r["task"]: r["rate"] for r in rows if (r["arm"], r["setting"]) == ("plain", "tuned")}


def main(path: Path, jobs: int, blocks: Sequence[str]) -> None:
    """Train all runs of the blocks."""
    keys = [
        k for b in blocks for k in itertools.product(*(part.split(",") for part in b.split(":")))
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool, path.open("a") as file:
        for row in pool.map(train, dict.fromkeys(keys)):
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
