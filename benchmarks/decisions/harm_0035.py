"""Prototypes of decision 35: where corrected updates do harm, and whether the next gradient tells.

``python -m benchmarks.decisions.harm_0035 NAME... --seeds 0 1`` trains tasks of the benchmark at
their best rate and a tenth of it, and clients, for two thirds of their steps. A client is trained
by the Python of its own environment. Every run is a line of ``docs/results/harm-0035.jsonl``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import RESULTS
from benchmarks.clients import CLIENTS, client
from benchmarks.clients import __main__ as clients
from hybrid_predict import SpectralUpdate
from hybrid_predict.groups.group import Group
from hybrid_predict.torch import matrices
from hybrid_predict.updates.correct import Correction

PATH, WINDOW, FIRST = RESULTS / "harm-0035.jsonl", 40, 3
"""Results; full steps of a window; and windows of which the sums of each matrix are kept."""

SHARES = {f"share {k}": {"speedup": 1, "updates": {"hidden": SpectralUpdate(share=k)}}
          for k in (0.5, 0.75)}  # fmt: skip
LEFT = {
    "smp": ("*decoder.seg_blocks.3*", "*decoder*", "*encoder*"),
    "deeptab": ("*blocks.0*", "*blocks.1*", "*blocks.2*", "*linear1*", "*linear2*"),
    "deepxde": ("*linears.1*", "*linears.2*"),
}
"""Matrices of clients that are left to the optimizer, by pattern."""


class Along:
    """Sums of -<g', u> and -<g', c> per full step: g' is the gradient of the next one.

    u is the optimizer's update of a matrix, and c the one that replaces it.
    """

    def __init__(self) -> None:
        self.steps: list[list[tuple[float, float]]] = []
        self._pair: Any = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the updates of every group."""
        write, opened = Correction.write, Group.open

        def noted(
            c: Correction, values: Sequence[Tensor], before: Any, options: Any, *a: Any
        ) -> None:
            kept = [(1 - o.shrink) * b for b, o in zip(before, options, strict=True)]
            own = [v - k for v, k in zip(values, kept, strict=True)]
            write(c, values, before, options, *a)
            pairs = zip(own, values, kept, strict=True)
            self._pair = c.members, [(u, v - k) for u, v, k in pairs]

        def compared(group: Group, *a: Any, **k: Any) -> Any:
            if self._pair is not None:
                members, pairs = self._pair
                grads = [group.parameters[m].grad for m in members]
                both = [(g, *pair) for g, pair in zip(grads, pairs, strict=True) if g is not None]
                self.steps.append(
                    [(-float((g * u).sum()), -float((g * c).sum())) for g, u, c in both]
                )
                self._pair = None
            return opened(group, *a, **k)

        with patch.object(Correction, "write", noted), patch.object(Group, "open", compared):
            yield

    def to_dict(self) -> dict[str, Any]:
        """Return sums of windows, and sums of every matrix over the first ones."""
        parts = [self.steps[k : k + WINDOW] for k in range(0, len(self.steps), WINDOW)]
        pooled = [[_short(sum(pair[k] for step in part for pair in step)) for k in (0, 1)]
                  for part in parts if len(part) == WINDOW]  # fmt: skip
        first = [s for s in self.steps[: FIRST * WINDOW] if len(s) == len(self.steps[-1])]
        each = [[_short(sum(pair[k] for pair in row)) for k in (0, 1)]
                for row in zip(*first, strict=True)]  # fmt: skip
        return {"windows": pooled, "matrices": each}


class Muon(torch.optim.Adam):
    """Orthogonal factors of averaged gradients, as long as Adam's updates; Adam for the rest."""

    last: ClassVar[bool] = True

    def step(self, closure: Any = None) -> Any:
        """Update the weights."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        weights = [p for group in self.param_groups for p in group["params"]]
        flat = [p for p in weights if p.dim() > 1 and 1 < p.shape[0] < p.numel()]
        flat = [p for p in flat[1 : None if self.last else -1] if p.grad is not None]
        before = [p.detach().clone() for p in flat]
        super().step()
        with torch.no_grad():
            for p, old in zip(flat, before, strict=True):
                moment = self.state[p].setdefault("average", torch.zeros_like(p))
                moment.lerp_(p.grad, 0.05)
                factor = matrices.orthogonal(moment.reshape(1, len(p), -1).clone(), 3).view_as(p)
                p.copy_(old - factor * ((p - old).norm() / factor.norm().clamp_min(1e-20)))
        return loss


def of_task(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train a task of the benchmark."""
    from benchmarks.plan import Cell
    from benchmarks.tasks import TASKS
    from benchmarks.train import train

    for suite in ("core", "wide", "fresh"):
        runs = json.loads((RESULTS / f"bench-{suite}.json").read_text("utf-8"))["runs"]
        at = [r for r in runs if (r["task"], r["arm"], r["seed"]) == (name, "corrected", seed)]
        if at:
            break
    run = next(r for r in at if r["setting"] == "tuned")
    fields = ("task", "setting", "seed", "hidden", "decay", "steps", "recipe")
    own = {k: run[k] for k in fields}
    for factor in (1.0, 0.1):
        from benchmarks import arms

        for change, options in {"plain": None, "corrected": {"speedup": 1}, **SHARES}.items():
            arm = "short" if options is None else "corrected"
            cell = Cell(**own, arm=arm, rate=factor * run["rate"])
            changed = replace(arms.ARMS[arm], plugin=options)
            along = Along()
            with patch.dict(arms.ARMS, {arm: changed}), along.recorded():
                row = train(cell, TASKS[name])
            told = along.to_dict() if change == "corrected" else {}
            yield {"name": name, "factor": factor, "seed": seed, "change": change,
                   "quality": row["loss"], "full_steps": row["full_steps"], **told}  # fmt: skip


def of_client(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Train a client."""
    clients.quiet()
    chosen = client(name)
    length = round(clients.SHORT * chosen.length)
    left = {f"left {p}": {"speedup": 1, "kinds": {p: "vector"}} for p in LEFT.get(name, ())}
    changes = {"plain": None, "corrected": {"speedup": 1}, **SHARES, **left}
    changes["no scales"] = {"speedup": 1}
    for change, options in changes.items():
        along = Along()
        none: Callable[..., Any] = (lambda *_: []) if change == "no scales" else matrices._scales
        with (
            patch.dict(clients.ARMS, {"tried": options}),
            patch.object(matrices, "_scales", none),
            along.recorded(),
        ):
            row = clients._trained(chosen, "tried", seed, length)
        told = along.to_dict() if change == "corrected" else {}
        yield {"name": name, "factor": 1.0, "seed": seed, "change": change,
               "quality": row["quality"], "full_steps": row["full_steps"], **told}  # fmt: skip
    if name == "smp":
        for Muon.last in (True, False):
            with patch.object(torch.optim, "Adam", Muon):
                row = clients._trained(chosen, "short", seed, length)
            change = "Muon" if Muon.last else "Muon, not the last matrix"
            yield {"name": name, "factor": 1.0, "seed": seed, "change": change,
                   "quality": row["quality"], "full_steps": row["full_steps"]}  # fmt: skip


def _short(x: float) -> float:
    return float(f"{x:.3g}")


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.names:
        for seed in asked.seeds:
            for row in (of_client if name in CLIENTS else of_task)(name, seed):
                with PATH.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(
                    {k: row[k] for k in ("name", "factor", "seed", "change", "quality")}, flush=True
                )


if __name__ == "__main__":
    main()
