"""Compares directions of forecasts with ``speedup="auto"``, at small learning rates.

Every direction has the length of the drift, so that only directions differ; the run decides how
far they lead. Run with: python -m benchmarks.rates.directions --jobs 2
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import RESULTS
from benchmarks.arguments import one_of, positive
from benchmarks.plan import Row, as_cell, number
from benchmarks.rates.gains import at_shares, beside, mean, worst
from benchmarks.rates.study import DEVELOPMENT, best_rates, cell, nearest
from benchmarks.run import start_worker
from benchmarks.table import markdown
from benchmarks.tasks import TASKS
from benchmarks.train import Run, warm
from hybrid_predict import FittedPredictor, HybridConfig, MomentumPredictor
from hybrid_predict.config import KINDS
from hybrid_predict.forecast.base import AbstractPredictor, PredictorState
from hybrid_predict.runs.rows import Rows
from hybrid_predict.torch.deltas import WeightDelta

BLOCKS, BLOCK = 4, 10
"""Number of means of successive displacements that are kept, and displacements in each."""

SHARES = (1 / 100, 1 / 10)
FILE = "pace-directions.jsonl"
Key = tuple[str, str, float, int]


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return float(sum((a * b).sum() for a, b in zip(left, right, strict=True)))


def _sum(weights: Sequence[float], blocks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    columns = zip(*blocks, strict=True)
    return [sum(w * x for w, x in zip(weights, each, strict=True)) for each in columns]


def linear(blocks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Dynamic modes of the path: two coefficients that predict a block from the two before it.

    Schmid, Dynamic mode decomposition (2010), in the Krylov space of the newest blocks.
    """
    gram = torch.tensor([[_dot(a, b) for b in blocks] for a in blocks], dtype=torch.float64)
    # Newest first: block k is predicted from blocks k + 1 and k + 2.
    left = gram[1:3, 1:3] + gram[2:4, 2:4]
    right = gram[1:3, 0] + gram[2:4, 1]
    ridge = 1e-3 * left.trace() * torch.eye(2, dtype=torch.float64)
    return _sum(torch.linalg.solve(left + ridge, right).tolist(), blocks[:2])


def reduced_rank(blocks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The way to the limit that reduced-rank extrapolation finds (Sidi, 1991)."""
    gram = torch.tensor([[_dot(a, b) for b in blocks] for a in blocks], dtype=torch.float64)
    gram += 1e-3 * gram.trace() * torch.eye(len(blocks), dtype=torch.float64)
    solved = torch.linalg.solve(gram, torch.ones(len(blocks), dtype=torch.float64))
    shares = (solved / solved.sum()).tolist()  # of the points before each block, newest first
    behind = [sum(shares[k:]) for k in range(len(blocks))]
    return _sum([-x for x in behind], blocks)


def trend(blocks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The newest block, and half of its change."""
    return _sum([1.5, -0.5], blocks[:2])


RULES = {"dynamic modes": linear, "reduced rank": reduced_rank, "trend": trend}


@final
@dataclass(frozen=True, kw_only=True)
class PathPredictor(AbstractPredictor):
    """Forecasts along a direction of the newest blocks of the path; at first along the drift."""

    rule: str
    decay: float = 0.95
    gated: bool = True

    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        """Return an empty path."""
        arrays = {"drift": [torch.zeros_like(x) for x in like]}
        arrays |= {f"block{k}": [torch.zeros_like(x) for x in like] for k in range(BLOCKS + 1)}
        return PredictorState(tuple(names), arrays)

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Add to the drift and to the block that is open, block 0."""
        state.count += 1
        share = 1.0 - min(self.decay, 1.0 - 1.0 / state.count)
        torch._foreach_lerp_(state.arrays["drift"], list(displacement), share)
        torch._foreach_add_(state.arrays["block0"], list(displacement), alpha=1.0 / BLOCK)
        if state.count % BLOCK == 0:
            for k in range(BLOCKS, 0, -1):
                state.arrays[f"block{k}"] = state.arrays[f"block{k - 1}"]
            state.arrays["block0"] = [torch.zeros_like(x) for x in displacement]

    def forecast(self, state: PredictorState, rates: Sequence[float | Tensor]) -> WeightDelta:
        """Return the direction, as long as the drift over all tensors."""
        drift = state.arrays["drift"]
        made = drift
        if state.count >= BLOCKS * BLOCK:
            made = RULES[self.rule]([state.arrays[f"block{k}"] for k in range(1, BLOCKS + 1)])
        size = _dot(made, made)
        scale = (_dot(drift, drift) / size) ** 0.5 if size > 0 else 0.0
        return WeightDelta(state.names, tuple(made), tuple(scale * rate for rate in rates))


DIRECTIONS: Mapping[str, Callable[[], AbstractPredictor]] = {
    "drift, fitted length per tensor": FittedPredictor,
    "drift": partial(MomentumPredictor, coefficient=1.0),
    "drift, decay .9": partial(MomentumPredictor, coefficient=1.0, decay=0.9),
    "drift, decay .98": partial(MomentumPredictor, coefficient=1.0, decay=0.98),
    **{name: partial(PathPredictor, rule=name) for name in RULES},
}
"""Predictors by the name of their direction."""


def measure(key: Key) -> dict[str, Any]:
    """Make one run, and return its row."""
    name, task, share, seed = key
    warm(TASKS[task])
    made, chosen = DIRECTIONS[name](), cell(task, "auto", seed, best_rates()[task] * share, 1)
    with patch.object(HybridConfig, "chosen_predictors", dict.fromkeys(KINDS, made)):
        run = Run(chosen, TASKS[task])
        run.train()
    loss = TASKS[task].final_loss(run.model)
    row = {"direction": name, "task": task, "share": share, "seed": seed, **run.counts()}
    return {**row, "loss": loss if run.finite else None}


def key_of(row: Row) -> Key:
    """Return the key of a row."""
    return row["direction"], row["task"], row["share"], row["seed"]


def keys(seeds: int) -> Iterator[Key]:
    """Return all runs, seed by seed."""
    for seed in range(seeds):
        for share in SHARES:
            for task in DEVELOPMENT:
                for name in DIRECTIONS:
                    yield name, task, share, seed


def table(rows: Collection[Row], study: Iterable[Row]) -> str:
    """Return geometric means of what each direction gains beside corrected updates alone."""
    curves, lines = at_shares(study), []
    for name in DIRECTIONS:
        cells = [name]
        for share in SHARES:
            ratios = {
                row["task"]: beside(
                    curves[row["task"], nearest(share), "corrected"],
                    number(row["loss"]),
                    row["full_steps"],
                )
                for row in rows
                if row["direction"] == name and nearest(row["share"]) == nearest(share)
            }
            cells += [mean(ratios.values()), worst(ratios)]
        lines.append(cells)
    titles = ["direction", "at 1/100", "worst task", "at 1/10", "worst task"]
    return markdown(titles, lines)


def main(argv: list[str] | None = None) -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser("python -m benchmarks.rates.directions", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=DEVELOPMENT, type=one_of(DEVELOPMENT))
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--jobs", type=positive, default=1)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results file")
    asked = parser.parse_args(argv)
    store = Rows(asked.folder / FILE, key_of)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, context, initializer=start_worker) as pool:
        missing = [k for k in keys(asked.seeds) if k not in store.done and k[1] in asked.tasks]
        for future in as_completed([pool.submit(measure, key) for key in missing]):
            store.add(row := future.result())
            print(*key_of(row)[:3], f"loss {number(row['loss']):.4f}", flush=True)
    print(table(store.done.values(), Rows(RESULTS / "rates.jsonl", as_cell).done.values()))


if __name__ == "__main__":
    main()
