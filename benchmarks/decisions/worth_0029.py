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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.arms import ARMS
from benchmarks.decisions.runs import FOLDER
from benchmarks.plan import Cell, Row, as_cell
from benchmarks.run import code_digest, start_worker
from benchmarks.table import markdown
from benchmarks.tasks import FRESH, TASKS
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


@final
@dataclass(frozen=True)
class Worth:
    """What predicted steps are worth on one task.

    Args:
        task: Name of the task.
        full_steps: Mean full steps of the default.
        predicted_steps: Mean predicted steps.
        off: Loss minus that of corrected updates alone in as many full steps, by seed.
        logs: Logarithm of the worth in full steps, by seed.
    """

    task: str
    full_steps: float
    predicted_steps: float
    off: NDArray[Any]
    logs: NDArray[Any]


def worths(store: Rows[Key]) -> list[Worth]:
    """What the controls show, for tasks with predicted steps whose controls are finished."""
    (code,) = {row["code"] for row in store.done.values()}
    loss = {found[:3]: row["loss"] for found, row in store.done.items()}
    hybrid, corrected = tuned_runs("hybrid"), tuned_runs("corrected")
    found = []
    for task in dict.fromkeys(task for task, _ in hybrid):
        own = {seed: row for (name, seed), row in hybrid.items() if name == task}
        assert {row["code"] for row in own.values()} == {code}, "runs of another code"
        wanted = [(task, s, n) for s, row in own.items() for n in (row["full_steps"], row["steps"])]
        made = sum(row["predicted_steps"] for row in own.values())
        if not made or any(place not in loss for place in wanted):
            continue  # where none was made, none has earned anything
        longer = np.mean([loss[task, seed, row["steps"]] for seed, row in own.items()])
        shorter = np.mean([corrected[task, seed]["loss"] for seed in own])
        off = np.array([r["loss"] - loss[task, s, r["full_steps"]] for s, r in own.items()])
        logs = -off / float(shorter - longer) * np.log(1.5)
        full = float(np.mean([row["full_steps"] for row in own.values()]))
        found.append(Worth(task, full, made / len(own), off, logs))
    return found


def _error(values: NDArray[Any]) -> float:
    """Standard error of a mean."""
    return float(values.std(ddof=1)) / len(values) ** 0.5


def blocks() -> dict[str, Callable[[], str]]:
    """The block of pages."""
    return {"worth": lambda: table(worths(Rows(PATH, key)))}


def table(found: Sequence[Worth]) -> str:
    """Compare the default with corrected updates alone in as many full steps, by task."""
    rows = [
        [
            f"`{w.task}`", f"{w.full_steps:,.0f}", f"{w.predicted_steps:,.0f}",
            f"{w.off.mean():+.4f} ± {2 * _error(w.off):.4f}", f"{np.exp(w.logs.mean()):.3f}",
        ]
        for w in found
    ]  # fmt: skip
    fresh = {task.name for task in FRESH}
    for title, chosen in (
        ("`core` and `wide`", [w for w in found if w.task not in fresh]),
        ("`fresh`", [w for w in found if w.task in fresh]),
    ):
        rows.append([f"geometric mean, {title}", "", "", "", _mean(chosen)])
    titles = ["task", "full steps", "predicted steps", "loss minus the control's", "worth"]
    return markdown(titles, rows)


def _mean(found: Sequence[Worth]) -> str:
    """Geometric mean over tasks, with two standard errors over seeds."""
    mean = float(np.mean([w.logs.mean() for w in found]))
    error = 2 * sum(_error(w.logs) ** 2 for w in found) ** 0.5 / len(found)
    low, high = np.exp([mean - error, mean + error])
    return f"{np.exp(mean):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Train the controls that are missing, and print what predicted steps are worth."""
    store, code = Rows(PATH, key), code_digest("corrected")
    corrected = tuned_runs("corrected")
    wanted = [
        (as_cell(corrected[place]), steps)
        for place, row in tuned_runs("hybrid").items()
        for steps in sorted({row["full_steps"], row["steps"]})
        if (*place, steps, code) not in store.done
    ]
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=start_worker) as pool:
        for job in as_completed([pool.submit(control, *each) for each in wanted]):
            store.add(job.result())
    print(table(worths(store)))


if __name__ == "__main__":
    main()
