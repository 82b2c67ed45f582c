"""Trains byte GPTs of 10 M and 30 M parameters, in runs that stop and go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.arms import ARMS
from benchmarks.plan import Cell, number, recipe_digest, to_row
from benchmarks.run import code_digest
from benchmarks.scale.study import MIDDLE, PLAIN, dimensions
from benchmarks.tasks.base import Batch, Recipe
from benchmarks.tasks.gpt import ByteGPTTask
from benchmarks.train import Run, warm
from hybrid_predict.runs.rows import Row, Rows

COMPARED = ("short", "corrected", "hybrid", "muon", "corrected-any-cost", "plain-double")
"""Arms at the better of plain training's rates; Muon's rates are not tuned either."""


@dataclass(frozen=True, kw_only=True)
class SizeTask(ByteGPTTask):
    """A byte-level GPT on the standard library's source text, in bfloat16 autocast."""

    small: ClassVar = {
        "layers": 1, "heads": 1, "width": 32, "context": 16, "batch_size": 4,
        "validation_batches": 1,
    }  # fmt: skip

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Training loss, its forward pass in bfloat16 where autocast allows."""
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(model, batch)


def sized(name: str, layers: int, width: int, rows: int) -> SizeTask:
    """A task whose heads are 64 wide, on batches of ``rows`` windows of 256 bytes."""
    rate = MIDDLE / width
    return SizeTask(
        name=f"{name}-{rows * 256}", title=f"byte GPT, {name}, {rows * 256:,} bytes a step",
        steps=450, layers=layers, heads=width // 64, width=width, context=256, batch_size=rows,
        recipe=Recipe(learning_rate=rate, rates=(rate, 2 * rate), weight_decay=0.1),
    )  # fmt: skip


TASKS = (
    sized("10m", 8, 320, 8),
    sized("30m", 10, 512, 8),
    sized("10m", 8, 320, 32),
    sized("30m", 10, 512, 32),
)


class Sizes:
    """The runs of tasks; ``on_row`` is called with each new one.

    Rows have no seconds unless the runs are ``timed``.
    """

    def __init__(
        self,
        folder: Path,
        store: Rows[Cell],
        on_row: Callable[[Row], object],
        *,
        timed: bool = True,
    ) -> None:
        self._folder, self._store, self._on_row, self._timed = folder, store, on_row, timed

    def run(self, task: SizeTask, seeds: int) -> None:
        """Make the runs of a task that are not done; plain runs with seed 0 decide the rate."""
        tried = [self._result(task, PLAIN, rate, 0) for rate in task.recipe.rates]
        rate = min(tried, key=lambda row: number(row["loss"]))["rate"]
        for seed in range(seeds):
            for arm in (PLAIN, *COMPARED):
                self._result(task, arm, rate, seed)

    def _result(self, task: SizeTask, arm: str, rate: float, seed: int) -> Row:
        digest = recipe_digest(task, ARMS[arm])
        cell = Cell(task.name, "two rates", arm, seed, rate, 1.0, True, task.steps, digest)
        if cell not in self._store.done:
            row = {**trained(cell, task, self._folder), **dimensions(task)}
            self._store.add(row if self._timed else {**row, "seconds": None})
            self._on_row(row)
        return self._store.done[cell]


def trained(cell: Cell, task: SizeTask, folder: Path, every: int = 25) -> dict[str, Any]:
    """Train a cell, from where it was stopped if it was, and return its row.

    Every few full steps the run is saved in the folder. ``parts`` counts how often it was started.
    """
    warm(task)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.task}-{cell.arm}-{cell.rate:g}-{cell.seed}-{cell.recipe}.pt"
    run, code = Run(cell, task), code_digest(cell.arm)
    spent, parts = 0.0, 1
    if path.exists() and (saved := torch.load(path))["code"] == code:
        run.load_state_dict(saved["run"])
        spent, parts = saved["seconds"], saved["parts"] + 1
    while not run.done:
        started = process_time()
        run.train(run.full_steps + every)
        spent += process_time() - started
        if not run.done:
            _save({"run": run.state_dict(), "code": code, "seconds": spent, "parts": parts}, path)
    row = {**run.result(), "seconds": spent, "parts": parts, "code": code}
    path.unlink(missing_ok=True)
    return to_row(cell, row)


def _save(state: dict[str, Any], path: Path) -> None:
    """Save a state so that a stop in between leaves the one before."""
    torch.save(state, new := path.with_suffix(".new"))
    new.replace(path)
