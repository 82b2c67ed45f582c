"""Prototypes of decision 32 on lengths: relative to the weights, pinned norms, no bound.

``python -m benchmarks.decisions.lengths_0032 NAME... --tasks TASK... --seeds SEED...`` trains
corrected updates alone for as many full steps as the committed runs, at their rates.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import arms, train
from benchmarks.plan import as_cell
from benchmarks.run import start_worker
from benchmarks.tasks import FRESH, TASKS
from hybrid_predict import SpectralUpdate, WhitenedUpdate
from hybrid_predict.torch import deltas, lists
from hybrid_predict.torch.optimizer import Options
from hybrid_predict.updates.correct import Correction, Mask
from hybrid_predict.updates.masks import either

_ANY = {"max_overhead": 1e9}
_FREE = WhitenedUpdate(bound=None)
PROTOTYPES: dict[str, dict[str, Any]] = {
    "rows pinned": {"floor": 0.0, "pin": True},
    "rows pinned, at least 1.4 %": {"floor": 0.014, "pin": True},
    "at least 1.4 %": {"floor": 0.014, "pin": False},
    "whitened": {**_ANY, "updates": {"hidden": "whitened"}},
    "whitened, no bound": {**_ANY, "updates": {"hidden": _FREE}},
    "whitened, head spectral": {**_ANY, "updates": {"hidden": "whitened", "head": "spectral"}},
    "whitened, no bound, head spectral": {
        **_ANY, "updates": {"hidden": _FREE, "head": "spectral"}
    },
    "no bound": {**_ANY, "updates": {"hidden": SpectralUpdate(bound=None)}},
}  # fmt: skip


class _Lengths:
    """Writes corrected updates whose rows have a least length relative to those of the weights.

    With ``pin``, half of the outward radial part is left out, and the norms of rows change by the
    first-order step alone.
    """

    def __init__(self, floor: float, *, pin: bool) -> None:
        self._floor, self._pin, self._largest = floor, pin, 0.0

    def write(
        self,
        correction: Correction,
        values: Sequence[Tensor],
        before: Sequence[Tensor],
        options: Sequence[Options],
        bound: float | None,
        masks: Sequence[Mask],
        carries: Sequence[Tensor],
        counts: lists.Counts,
    ) -> None:
        kept = [1.0 - each.shrink for each in options]
        lengths, lost = correction._lengths(values, before, kept, bound, counts)
        rows = zip(correction.directions, lengths, before, options, kept, strict=True)
        new = [self._moved(length * d, b, each, rest) for d, length, b, each, rest in rows]
        for k, (value, mask, unusable) in enumerate(zip(values, masks, lost, strict=True)):
            still = mask if mask is True else either(mask, unusable)
            if still is not None:
                new[k] = value.clone() if still is True else torch.where(still, value, new[k])
        deltas.write(list(values), new, carries)

    def _moved(self, update: Tensor, before: Tensor, options: Options, kept: Any) -> Tensor:
        rate = float(options.rate)
        self._largest = max(self._largest, rate)
        rows, step = before.flatten(1), update.flatten(1)
        norms = rows.norm(dim=1, keepdim=True)
        length = step.norm(dim=1, keepdim=True).clamp_min(1e-30)
        step = step * torch.maximum(length, self._floor * rate / self._largest * norms) / length
        there = rows + step
        if self._pin:
            safe = norms.clamp_min(1e-30)
            radial = (step * rows).sum(1, keepdim=True) / safe.square()
            step = step - 0.5 * radial.clamp_min(0.0) * rows
            there = rows + step
            wanted = norms + (step * rows).sum(1, keepdim=True) / safe
            pinned = there * wanted.clamp_min(1e-30) / there.norm(dim=1, keepdim=True)
            there = torch.where(norms > 1e-20, pinned, there)
        return (there - (1.0 - kept) * rows).reshape(before.shape)


_BASE, _WRITE = arms.ARMS["corrected"], Correction.write


def _trained(name: str, row: dict[str, Any]) -> dict[str, Any]:
    changes = dict(PROTOTYPES[name])
    Correction.write = _WRITE  # type: ignore[method-assign]
    if "floor" in changes:
        own = _Lengths(changes.pop("floor"), pin=changes.pop("pin"))
        Correction.write = lambda *args: own.write(*args)  # type: ignore[method-assign]
    arms.ARMS["corrected"] = replace(_BASE, plugin={"speedup": 1, **changes})
    known = {**TASKS, **{each.name: each for each in FRESH}}
    found = train.train(as_cell({**row, "arm": "corrected"}), known[row["task"]])
    keys = {key: row[key] for key in ("task", "setting", "seed")}
    return {"name": name, **keys, "loss": found["loss"]}


def main() -> None:
    """Train what is asked for, and append it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=PROTOTYPES)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("lengths-0032.jsonl"))
    asked = parser.parse_args()
    committed = [
        run
        for suite in ("core", "wide", "fresh")
        for run in json.loads(Path(f"docs/results/bench-{suite}.json").read_text())["runs"]
        if (run["arm"], run["setting"]) == ("corrected", "tuned")
    ]
    chosen = [r for r in committed if r["task"] in asked.tasks and r["seed"] in asked.seeds]
    with ProcessPoolExecutor(asked.jobs, get_context("spawn"), initializer=start_worker) as pool:
        jobs = [pool.submit(_trained, name, row) for row in chosen for name in asked.names]
        for job in as_completed(jobs):
            with asked.output.open("a") as lines:
                lines.write(json.dumps(job.result()) + "\n")


if __name__ == "__main__":
    main()
