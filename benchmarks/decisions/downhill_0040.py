"""Lengths and directions of corrected updates, for decision 40, as patches of commit 97e5165.

Run in a checkout of that commit, with this file beside its benchmarks:
python -m benchmarks.decisions.downhill_0040 ROWS JOBS TASKS:FACTORS:SEEDS:VARIANTS...
with names separated by commas; factors are on the best rate of plain training.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
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
from hybrid_predict import SpectralUpdate
from hybrid_predict.groups import groups
from hybrid_predict.rules import length, polynomials
from hybrid_predict.torch import lists, matrices
from hybrid_predict.updates import correct, spectral


def lengths(kind: str, bound: float, power: float = 1.0, usual: float | None = None) -> Any:
    """Factors on the optimizer's lengths: per matrix, pooled, their geometric mean, or none."""

    def found(self: Any, values: Any, before: Any, kept: Any, counts: Any) -> Any:
        own, along, slopes = lists.slopes(
            (values, before, kept), self.averages, self.directions, counts
        )
        own = torch.where(own.isfinite() & slopes.isfinite(), own, 0.0)
        each = torch.where(slopes < 0, along / torch.where(slopes < 0, own * slopes, 1.0), 1.0)
        each = torch.where(each.isfinite(), each, 1.0).clip(1.0, bound)
        pool = along.sum() / (own * slopes).sum()
        pool = torch.where(pool.isfinite(), pool, 1.0).clip(1.0, bound).expand_as(each)
        factors = {"each": each, "pool": pool, "geo": (each * pool).sqrt(), "none": each * 0 + 1}
        new = own * factors[kind] ** power
        if usual is not None:
            rows = [float(d.shape[0]) for d in self.directions]
            new = torch.maximum(own, torch.minimum(new, usual * own.new_tensor(rows).sqrt()))
        new = new * self.period**length.LONGER
        return new, [None] * len(own) if all(own.tolist()) else (own == 0).unbind()

    return lambda: setattr(correct.Correction, "_lengths", found)


def averages() -> None:
    """Covariances of averaged gradients in place of gradients."""
    before = SpectralUpdate.direction

    def direction(self: Any, state: Any, members: Any, of: Any, gradients: Any) -> Any:
        return before(self, state, members, of, [x.clone() for x in of])

    SpectralUpdate.direction = direction  # type: ignore[method-assign]


def no_scales() -> None:
    matrices._scales = lambda *_: [torch.ones(()), torch.ones(())]


def no_levels() -> None:
    matrices._levelled = lambda stack, _: stack.div_(-matrices.lengths(stack))


def period(number: int) -> Callable[[], None]:
    return lambda: setattr(groups, "shortest_period", lambda *_: number)


def constant(module: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(module, name, value)


def chosen(**settings: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"updates": {"hidden": SpectralUpdate(**settings)}}


PATCHES: dict[str, Callable[[], Any]] = {
    "base": dict,
    "none": lengths("none", 1.0),
    **{f"{k}{b}": lengths(k, b) for k in ("each", "pool", "geo") for b in (3, 6)},
    **{f"{k}6h": lengths(k, 6, 0.5) for k in ("each", "pool")},
    **{f"eachc{u}": lengths("each", 6, 1.0, u / 100) for u in (2, 3, 4)},
    "fromM": averages,
    "noscale": no_scales,
    "nolevel": no_levels,
    "noroot": chosen(longest=0),
    "nonew": chosen(newest=0.0),
    "head": lambda: {"updates": dict.fromkeys(("hidden", "head"), SpectralUpdate())},
    "every10": constant(spectral, "SEEN_EVERY", 10),
    "early3": constant(spectral, "EARLY", 3),
    "rho98": constant(spectral, "COVARIANCE_DECAY", 0.98),
    "factor01": constant(matrices, "FACTOR", polynomials.halley(0.01)),
    "root03": constant(matrices, "ROOT", polynomials.halley(0.03)),
    **{f"P{n}": period(n) for n in (2, 5, 10, 20)},
}
"""Patches by variant; ``c3...`` is such a patch beside ``eachc3``, ``neither`` has no scales and no
levels."""


def train(key: tuple[str, str, str, str]) -> dict[str, Any]:
    start_worker()
    name, factor, seed, variant = key
    settings: dict[str, Any] = {"speedup": 1, "max_overhead": 1e9}
    names = ["noscale", "nolevel"] if variant == "neither" else [variant]
    if variant.startswith("c3"):
        names = ["eachc3", variant.removeprefix("c3")]
    for each in names:
        settings |= PATCHES[each]() or {}
    ARMS["study"] = Arm(name="study", title="study", plugin=settings)
    task, rate = TASKS[name], _best()[name] * float(factor)
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
    return {r["task"]: r["rate"] for r in rows if r["arm"] == "corrected" and r["seed"] < 1000}


def main(path: Path, jobs: int, blocks: Sequence[str]) -> None:
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
