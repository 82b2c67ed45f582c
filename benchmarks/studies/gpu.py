"""Ten minutes on one GPU: the time of full steps of GPT-2, and nanoGPT's recipe for a GPU.

On a machine without one the same runs are rehearsed at toy size, which says nothing of the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import torch

from benchmarks import step_cost
from benchmarks.arms import ARMS, code_digest
from benchmarks.plan import Cell, Plan, Row, Selection, check_chosen
from benchmarks.tasks.gpu import TIMED, GPUTask, TokensTask, shakespeare
from benchmarks.train import Run, clock
from benchmarks.views import NONE, view
from hybrid_predict.runs.runtime import environment

SECONDS = 600.0  # of one command; a run that may not end before is left to the next one

RATE = 1e-3
RUNS = (
    ("plain", RATE),
    ("hybrid", RATE),
    ("corrected", RATE),
    ("short", RATE),
    ("auto", RATE / 10),
    ("plain", RATE / 10),
)
"""Arms and learning rates of nanoGPT's recipe, in order of importance."""

SEEDS = 3
EVALUATIONS = 20  # of a run: one every 250 steps of 5,000, as in the recipe
BLOCKS = 5  # of full steps that are timed
STEPS = 8  # in a block
FEWER_STEPS = 2  # in a block, where the gradients of several batches are added up
TOY_STEPS = 120  # of a run in a rehearsal; predicted ones begin after about 41 full steps


class Key(NamedTuple):
    """A run, or a task whose full steps are timed: then ``arm`` is empty."""

    task: str
    arm: str
    rate: float
    seed: int


class GPUPlan(Plan[Key]):
    """The times of full steps, then the runs seed by seed, as far as they may end in time."""

    def __init__(self, chosen: Selection) -> None:
        self._toy = not torch.cuda.is_available()
        self._text = chosen.text
        self._seeds = chosen.seeds or SEEDS
        self._arms = chosen.arms or [arm for arm, _ in RUNS]
        check_chosen("arms", chosen.arms, [arm for arm, _ in RUNS])
        self._started = perf_counter()
        self._name = shakespeare(chosen.text).name

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        order = [Key(name, "", 0.0, 0) for name in TIMED]
        for seed in range(self._seeds):
            order += [Key(self._name, *run, seed) for run in RUNS if run[0] in self._arms]
        longest = max((row["elapsed"] for row in done.values()), default=0.0)
        for key in order:
            # One run is under way while the next one is chosen.
            if key not in done and perf_counter() - self._started + 2 * longest > SECONDS:
                return
            yield key

    def key(self, row: Row) -> Key:
        return Key(*(row[name] for name in Key._fields))

    def work(self, key: Key) -> Row:
        started = perf_counter()
        task: Any = TIMED.get(key.task) or shakespeare(self._text)
        if self._toy:
            task = replace(task.tiny(), steps=TOY_STEPS)
        torch.manual_seed(key.seed)  # of dropout
        result = _trained(task, key) if key.arm else _timed(task)
        return {
            **key._asdict(),
            **result,
            "elapsed": perf_counter() - started,
            "toy": self._toy,
            "environment": environment(),
            "code": code_digest(plugin=True),
        }

    def holds(self, row: Row) -> bool:
        return row["toy"] == self._toy and row["code"] == code_digest(plugin=True)


def _timed(task: TokensTask) -> dict[str, Any]:
    """Time full steps; the memory of each way is measured in the simplest case alone."""
    length = STEPS if task.parts == 1 else FEWER_STEPS
    simple = task.parts == 1 and not task.compiled
    return (step_cost.measure if simple else step_cost.timed)(task, BLOCKS, length)


def _trained(task: GPUTask, key: Key) -> dict[str, Any]:
    """Train a run; its seconds are those of the training, without evaluations."""
    cell = Cell(task.name, "gpu", key.arm, key.seed, key.rate, 1.0, True, task.steps, "")
    run = Run(cell, task)
    total = ARMS[key.arm].schedule(task.steps)
    curve: list[dict[str, float]] = []
    seconds = 0.0
    while not run.done:
        began = clock()
        steps = 0
        while not run.done and steps < total * (len(curve) + 1) // EVALUATIONS:
            run.step()
            steps = run.engine.ledger.steps if run.engine else run.full_steps
        seconds += clock() - began
        loss = task.final_loss(run.model)
        curve.append({"step": steps, "full_step": run.full_steps, "loss": loss, "seconds": seconds})
    run.close()
    best = min(curve, key=lambda point: point["loss"])
    return {
        **run.result(),
        "best": best["loss"],
        "best_step": best["step"],
        "best_full_step": best["full_step"],
        "seconds": seconds,
        "curve": curve,
        "characters": len(task.data().train) + len(task.data().val),
        "events": run.engine.ledger.events if run.engine else [],
    }


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return the tables of the page."""
    return {"gpu steps": lambda: view(_steps(rows)), "gpu runs": lambda: view(_runs(rows))}


def _steps(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for row in rows:
        if not row["arm"]:
            yield {
                "full step": TIMED[row["task"]].title + _toy(row),
                "plain, ms": f"{row['plain_ms']:.1f}",
                **{f"{way}, times plain": f"{row[way]['ratio']:.2f}" for way in step_cost.ADDED},
            }


def _runs(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for arm, rate in RUNS:
        found = [r for r in rows if r["arm"] == arm and r["rate"] == rate]
        if not found:
            continue
        mean = {name: fmean(row[name] for row in found) for name in _SHOWN}
        yield {
            "arm": ARMS[arm].title + _toy(found[0]),
            "rate": f"{rate:g}",
            "full steps": f"{mean['full_steps']:,.0f}",
            "predicted steps": f"{mean['predicted_steps']:,.0f}",
            "best validation loss": ", ".join(f"{row['best']:.4f}" for row in found),
            "after step": f"{mean['best_step']:,.0f}",
            "after full steps": f"{mean['best_full_step']:,.0f}",
            "last": ", ".join(NONE if r["loss"] is None else f"{r['loss']:.4f}" for r in found),
            "seconds": f"{mean['seconds']:.1f}",
        }


_SHOWN = ("full_steps", "predicted_steps", "best_step", "best_full_step", "seconds")


def _toy(row: Row) -> str:
    return " (toy size, on a CPU)" if row["toy"] else ""
