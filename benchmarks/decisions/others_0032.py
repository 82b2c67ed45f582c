"""Prototypes of decision 32 beside the matrices: vectors, heads, and averages of weights.

``python -m benchmarks.decisions.others_0032 NAME... --tasks TASK... --seeds SEED...`` trains
corrected updates alone for T / 1.5 full steps, at the rates of the committed runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks import arms, train
from benchmarks.decisions.scales_0032 import committed
from benchmarks.optimizers import Rates
from benchmarks.peers.around import ema_readout
from benchmarks.plan import as_cell
from benchmarks.run import start_worker
from benchmarks.tasks import FRESH, TASKS, Recipe
from hybrid_predict import SpectralUpdate
from hybrid_predict.torch.kinds import classify
from hybrid_predict.torch.matrices import (
    diagonals,
    inverse_roots,
    lengths,
    update_covariances,
)
from hybrid_predict.updates.base import AbstractUpdate, UpdateState


def by_kind(
    model: nn.Module,
    recipe: Recipe,
    rates: Rates,
    updates: int,
    *,
    kinds: Sequence[str],
    beta2: float,
) -> list[Optimizer]:
    """AdamW with another decay of second moments for some kinds of parameters."""
    kind_of = classify(model)
    parts: tuple[list[Tensor], list[Tensor]] = [], []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parts[kind_of[id(parameter)] in kinds].append(parameter)
    groups = [
        {"params": members, "betas": (recipe.betas[0], second)}
        for members, second in zip(parts, (recipe.betas[1], beta2), strict=True)
        if members
    ]
    return [AdamW(groups, lr=rates.base, weight_decay=recipe.weight_decay, fused=True)]


@dataclass(frozen=True, kw_only=True)
class OneSided(AbstractUpdate):
    """The averaged gradient times the inverse root of the covariance of its inputs."""

    newest: float = 0.2
    bound: float | None = 1.0
    roots: int = 2  # fourth roots in a row

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        """Return zero covariances."""
        sizes = [x.shape[1] for x in like]
        both = [diagonals(like, sizes, value, history) for value in (0.0, 1.0)]
        return UpdateState({"covariances": both[0], "roots": both[1]})

    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        matrices: list[Tensor],
        gradients: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return the products, of length one."""
        found = []
        for k, x, g in zip(members, matrices, gradients, strict=True):
            covariance, root = state.arrays["covariances"][k], state.arrays["roots"][k]
            update_covariances((covariance[:0], covariance), g, 0.95)
            inverse_roots([covariance], [root])
            side = x.shape[1]
            for _ in range(self.roots):
                x = x @ root.view(side, side)
            found.append(-x / lengths(x))
        return found


_HIDDEN = SpectralUpdate()
PROTOTYPES: dict[str, dict[str, Any]] = {
    "corrected": {},
    "vectors .99": {"build": partial(by_kind, kinds=("vector",), beta2=0.99)},
    "vectors .997": {"build": partial(by_kind, kinds=("vector",), beta2=0.997)},
    "all but hidden .99": {
        "build": partial(by_kind, kinds=("vector", "head", "embedding"), beta2=0.99)
    },
    "head one-sided": {"updates": {"hidden": _HIDDEN, "head": OneSided()}},
    "head one-sided, fourth root": {"updates": {"hidden": _HIDDEN, "head": OneSided(roots=1)}},
    "head spectral": {"updates": {"hidden": _HIDDEN, "head": SpectralUpdate(bound=1.0)}},
    "average .99": {"around": ema_readout},
    "average .95": {"around": partial(ema_readout, decay=0.95)},
}


_BASE = arms.ARMS["corrected"]


def _trained(name: str, row: dict[str, Any]) -> dict[str, Any]:
    changes = dict(PROTOTYPES[name])
    plugin = {"speedup": 1, "updates": changes.pop("updates", {"hidden": _HIDDEN})}
    arms.ARMS["corrected"] = replace(_BASE, plugin=plugin, **changes)
    known = {**TASKS, **{each.name: each for each in FRESH}}
    found = train.train(as_cell({**row, "arm": "corrected"}), known[row["task"]])
    keys = {key: row[key] for key in ("task", "setting", "seed")}
    return {"name": name, **keys, "loss": found["loss"]}


def main() -> None:
    """Train what is asked for, and append it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=PROTOTYPES)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--setting", default="tuned")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("others-0032.jsonl"))
    asked = parser.parse_args()
    chosen = [
        row
        for row in committed(asked.setting, "corrected" if asked.setting == "tuned" else "short")
        if row["task"] in asked.tasks and row["seed"] in asked.seeds
    ]
    with ProcessPoolExecutor(asked.jobs, get_context("spawn"), initializer=start_worker) as pool:
        jobs = [pool.submit(_trained, name, row) for row in chosen for name in asked.names]
        for job in as_completed(jobs):
            with asked.output.open("a") as lines:
                lines.write(json.dumps(job.result()) + "\n")


if __name__ == "__main__":
    main()
