"""What predicted steps are worth: against corrected updates alone in as many full steps.

A run whose predicted steps need skill takes as many full steps as its skill leaves, so that the
benchmark's arm *corrected* is no fair control: it has fewer. After the benchmark's suites have run,
``python -m benchmarks.decisions.worth_0029`` trains corrected updates alone for as many full steps
as each run of the default took, and for T, with schedules of their own. The losses are added to
``docs/results/worth-0029.jsonl``; finished runs of the same code are not made again.

A difference in loss is told in full steps too. The scale is how much lower the loss of corrected
updates alone is after T full steps than after T / 1.5.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.arms import ARMS
from benchmarks.decisions.runs import FOLDER
from benchmarks.plan import Cell, Row, as_cell
from benchmarks.run import code_digest, start_worker
from benchmarks.tasks import TASKS
from benchmarks.train import train
from hybrid_predict.runs.rows import Rows

Key = tuple[str, int, int, str]

PATH = FOLDER / "worth-0029.jsonl"


def key(row: Row) -> Key:
    """Task, seed, full steps and code of a control."""
    return row["task"], row["seed"], row["full_steps"], row["code"]


def control(cell: Cell, full_steps: int) -> dict[str, Any]:
    """Final loss of corrected updates alone."""
    name = f"corrected-{full_steps}"
    ARMS[name] = replace(ARMS["corrected"], name=name, share=full_steps / cell.steps)
    found = train(replace(cell, arm=name), TASKS[cell.task])
    assert found["full_steps"] == full_steps
    told = {"task": cell.task, "seed": cell.seed, "full_steps": full_steps}
    return {**told, "code": code_digest("corrected"), "loss": found["loss"]}


def tuned_runs(arm: str) -> dict[tuple[str, int], Row]:
    """Runs of an arm at the tuned rate in all suites, by task and seed."""
    files = [FOLDER / f"bench-{suite}.json" for suite in ("core", "wide", "fresh")]
    rows = [row for file in files for row in json.loads(file.read_text())["runs"]]
    own = [row for row in rows if (row["setting"], row["arm"]) == ("tuned", arm)]
    return {(row["task"], row["seed"]): row for row in own}


def main() -> None:
    """Train the controls that are missing, and print what predicted steps are worth."""
    store, code = Rows(PATH, key), code_digest("corrected")
    hybrid, corrected = tuned_runs("hybrid"), tuned_runs("corrected")
    wanted = [
        (as_cell(corrected[place]), steps)
        for place, row in hybrid.items()
        for steps in {row["full_steps"], row["steps"]}
        if (*place, steps, code) not in store.done
    ]
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=start_worker) as pool:
        for job in as_completed([pool.submit(control, *each) for each in wanted]):
            store.add(job.result())
    loss = {(task, seed, steps): row["loss"] for (task, seed, steps, c), row in store.done.items()
            if c == code}  # fmt: skip
    means = []
    for task in dict.fromkeys(task for task, _ in hybrid):
        own = {seed: row for (name, seed), row in hybrid.items() if name == task}
        longer = np.mean([loss[task, seed, row["steps"]] for seed, row in own.items()])
        shorter = np.mean([corrected[task, seed]["loss"] for seed in own])
        off = np.array([r["loss"] - loss[task, s, r["full_steps"]] for s, r in own.items()])
        worth = np.exp(-off / float(shorter - longer) * np.log(1.5))
        means.append(np.log(worth))
        steps = np.mean([row["full_steps"] for row in own.values()])
        made = np.mean([row["predicted_steps"] for row in own.values()])
        error = 2 * off.std(ddof=1) / len(off) ** 0.5
        print(f"{task:12} {steps:5.0f} + {made:4.0f} steps, loss {off.mean():+.4f} ± {error:.4f}, "
              f"worth {np.exp(means[-1].mean()):.3f}")  # fmt: skip
    total = np.array([each.mean() for each in means])
    errors = [each.std(ddof=1) / len(each) ** 0.5 for each in means]
    error = 2 * float(np.sqrt(np.sum(np.square(errors)))) / len(means)
    low, high = np.exp(total.mean() - error), np.exp(total.mean() + error)
    print(f"geometric mean {np.exp(total.mean()):.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
