"""What predicted steps with skill are worth: against corrected updates in as many full steps.

A run whose predicted steps need skill takes as many full steps as its skill leaves, so that the
benchmark's arm *corrected* is no fair control: it has fewer. After the benchmark's suites have run,
``python -m benchmarks.decisions.skill_0016 [SUITE...]`` trains corrected updates alone for as many
full steps as each such run took, with a schedule of their own, and writes the pairs of these
suites' tasks into ``docs/results/skill-0016.json``.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.arms import ARMS
from benchmarks.plan import Cell, as_cell
from benchmarks.tasks import TASKS
from benchmarks.train import train

FOLDER = Path(__file__).parents[2] / "docs" / "results"
COMPARED = ("hybrid", "fitted", "fitted-decays")


def control(cell: Cell, full_steps: int) -> tuple[str, int, int, float]:
    """Task, seed, full steps and final loss of corrected updates alone."""
    torch.set_num_threads(1)
    name = f"corrected-{full_steps}"
    ARMS[name] = replace(ARMS["corrected"], name=name, share=full_steps / cell.steps)
    found = train(replace(cell, arm=name), TASKS[cell.task])
    assert found["full_steps"] == full_steps
    return cell.task, cell.seed, full_steps, found["loss"]


def main() -> None:
    """Train the controls, and write every pair.

    Differences in loss are told in full steps as well. The scale is how much lower the loss of
    corrected updates alone is after T full steps than after T / 1.5.
    """
    files = [FOLDER / f"bench-{suite}.json" for suite in sys.argv[1:] or ("core", "wide")]
    rows = [row for file in files for row in json.loads(file.read_text())["runs"]]
    rows = [row for row in rows if row["setting"] == "tuned"]
    compared = [row for row in rows if row["arm"] in COMPARED]
    corrected = {
        (c.task, c.seed): c for row in rows if row["arm"] == "corrected" for c in [as_cell(row)]
    }
    wanted = {(r["task"], r["seed"], r["full_steps"]) for r in compared}
    wanted |= {(task, seed, cell.steps) for (task, seed), cell in corrected.items()}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        jobs = [pool.submit(control, corrected[task, seed], n) for task, seed, n in sorted(wanted)]
        losses = {job.result()[:3]: job.result()[3] for job in jobs}
    gains = {}
    for task in {task for task, _ in corrected}:
        longer = [losses[t, s, c.steps] for (t, s), c in corrected.items() if t == task]
        shorter = [r["loss"] for r in rows if (r["task"], r["arm"]) == (task, "corrected")]
        gains[task] = float(np.mean(shorter) - np.mean(longer)) / np.log(1.5)
    pairs: list[dict[str, Any]] = []
    for row in compared:
        task, seed, full = row["task"], row["seed"], row["full_steps"]
        alone = losses[task, seed, full]
        pairs.append(
            {
                "task": task, "arm": row["arm"], "seed": seed, "full_steps": full,
                "predicted_steps": row["predicted_steps"], "loss": row["loss"], "corrected": alone,
                "ratio": float(np.exp((alone - row["loss"]) / gains[task])),
            }
        )  # fmt: skip
    path = FOLDER / "skill-0016.json"
    known = json.loads(path.read_text()) if path.exists() else {"gain": {}, "pairs": []}
    pairs += [pair for pair in known["pairs"] if pair["task"] not in gains]
    text = json.dumps({"gain": {**known["gain"], **gains}, "pairs": pairs}, indent=1) + "\n"
    path.write_text(text)
    for arm in COMPARED:
        for task in sorted({p["task"] for p in pairs if p["arm"] == arm}):
            own = [p for p in pairs if (p["arm"], p["task"]) == (arm, task)]
            off = np.array([p["loss"] - p["corrected"] for p in own])
            ratio = np.array([p["ratio"] for p in own])
            error = 2 * off.std(ddof=1) / len(off) ** 0.5
            full = np.mean([p["full_steps"] for p in own])
            loss = f"loss {off.mean():+.4f} ± {error:.4f}"
            print(f"{arm:14} {task:10} {full:5.0f} full steps, {loss}, ratio {ratio.mean():.3f}")


if __name__ == "__main__":
    main()
