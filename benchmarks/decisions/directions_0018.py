"""Other directions of corrected updates: second moments in an eigenbasis, and cheaper ones.

``python -m benchmarks.decisions.directions_0018 NAME... --tasks TASK... --seeds N`` trains
corrected updates alone for T / 1.5 full steps, at the rates of ``docs/results/bench-*.json``, and
adds one line per run to ``docs/results/directions-0018.jsonl``.
"""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.decisions.runs import FOLDER, add_runs
from benchmarks.tasks import TASKS
from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.tensors.base import as_matrix
from hybrid_predict.tensors.spectrum import orthogonal
from hybrid_predict.updates import SpectralUpdate, UpdateState

RESULTS = FOLDER / "directions-0018.jsonl"
TINY = 1e-30


class Prototype(SpectralUpdate):
    """A direction of every matrix by itself; state is kept in memory only."""

    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        average: Sequence[Any],
        gradients: Sequence[Any],
        cosines: Any,
        backend: AbstractBackend[Any],
    ) -> list[Any]:
        """The negated directions of unit length."""
        kept = state.__dict__.setdefault("prototype", {})
        found = []
        triples = zip(members, average, gradients, cosines.tolist(), strict=True)
        for number, (k, m, g, cosine) in enumerate(triples):
            own = kept.setdefault(k, {"steps": -1})
            own["steps"] += 1
            own["cosine"] = cosine
            mean, newest = (x.reshape(as_matrix(x.shape)).float() for x in (m, g))
            target = torch.lerp(mean, newest, self.blend(cosine))
            made = self.make(own, target, newest, number)
            made = made / torch.linalg.vector_norm(made).clamp_min(TINY)
            found.append(-made.reshape(m.shape).to(m.dtype))
        return found

    def blend(self, cosine: float) -> float:
        """Share of the newest gradient."""
        return self.newest * (1.0 + cosine)

    @abstractmethod
    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """The direction of one matrix, of any length."""

    def levelled(self, own: dict[str, Any], made: Tensor) -> Tensor:
        """Rows divided by the roots of their averaged squares."""
        rows = own.setdefault("rows", torch.zeros(len(made)))
        rows.lerp_((made / made.norm().clamp_min(TINY)).square().mean(1), 0.05)
        return made / rows.clamp_min(TINY).sqrt().unsqueeze(1)

    def orthogonal(self, own: dict[str, Any], target: Tensor) -> Tensor:
        """Flattened and levelled, as the spectral update does it."""
        return self.levelled(own, orthogonal(target.unsqueeze(0).clone(), self.iterations)[0])


@dataclass(frozen=True, kw_only=True)
class Eigenbasis(Prototype):
    """Second moments in the eigenbasis of row and column covariances (SOAP, Vyas et al. 2024).

    Args:
        every: Full steps between two turns of the bases by one QR iteration.
        grow: Where above 0, bases are turned every ``steps / grow`` full steps until then.
        memory: Decay of second moments.
        covariance: Decay of covariances.
        power: The share of the newest gradient is ``newest (1 + cos) ** power``.
        small: Whether only the shorter side has a basis.
        then: Whether the outcome is orthogonalised.
    """

    every: int = 5
    grow: int = 0
    memory: float = 0.98
    covariance: float = 0.95
    power: float = 1.0
    small: bool = False
    then: bool = False

    def blend(self, cosine: float) -> float:
        """Share of the newest gradient."""
        return float(self.newest * (1.0 + cosine) ** self.power)

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """Divided by roots of second moments in the eigenbasis, and back."""
        step, least = own["steps"], min(target.shape)
        covariances = {"left": newest @ newest.T, "right": newest.T @ newest}
        for side, seen in covariances.items():
            if self.small and len(seen) > least:
                continue
            if step == 0:
                own[side], own[f"{side} basis"] = seen, torch.linalg.eigh(seen)[1].flip(1)
                continue
            own[side].lerp_(seen, 1.0 - self.covariance)
            if step % self._interval(step) == 0:
                own[f"{side} basis"] = torch.linalg.qr(own[side] @ own[f"{side} basis"])[0]
        left, right = own.get("left basis"), own.get("right basis")

        def turned(x: Tensor, back: bool = False) -> Tensor:
            if left is not None:
                x = (left if back else left.T) @ x
            return x if right is None else x @ (right.T if back else right)

        moments = own.setdefault("moments", torch.zeros_like(newest))
        moments.lerp_(turned(newest).square(), 1.0 - self.memory)
        floor = 1e-8 * moments.max().sqrt() + TINY
        made = turned(turned(target) / (moments.sqrt() + floor), back=True)
        return self.orthogonal(own, made) if self.then else made

    def _interval(self, step: int) -> int:
        return max(1, min(self.every, step // self.grow)) if self.grow else self.every


@dataclass(frozen=True, kw_only=True)
class Blocks(Prototype):
    """Orthogonalised in blocks of so many rows of the shorter side."""

    rows: int = 16

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """Every block by itself."""
        tall = target.shape[0] > target.shape[1]
        wide = target.T if tall else target
        short, long = wide.shape
        padding = torch.zeros(-short % self.rows, long)
        blocks = torch.cat([wide, padding]).reshape(-1, self.rows, long)
        made = orthogonal(blocks.clone(), self.iterations).reshape(-1, long)[:short]
        return self.levelled(own, made.T if tall else made)


@dataclass(frozen=True, kw_only=True)
class Reused(Prototype):
    """The orthogonal direction, found anew every few full steps."""

    every: int = 4

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """That of the last time it was found."""
        if (own["steps"] + number) % self.every == 0 or "made" not in own:
            own["made"] = self.orthogonal(own, target)
        made: Tensor = own["made"]
        return made


@dataclass(frozen=True, kw_only=True)
class Levelled(Prototype):
    """Columns and rows scaled to one length each, three times; no matrix products."""

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """Rows last."""
        made = target / target.norm().clamp_min(TINY)
        for _ in range(3):
            for dim in (0, 1):
                made = made / made.square().mean(dim, keepdim=True).sqrt().clamp_min(1e-12)
        return made


UNBOUNDED: dict[str, SpectralUpdate] = {
    "orthogonal": SpectralUpdate(),
    "orthogonal, 2 iterations": SpectralUpdate(iterations=2),
    "eigenbasis": Eigenbasis(memory=0.95),
    "eigenbasis, every 1": Eigenbasis(memory=0.95, every=1),
    "eigenbasis, every 10": Eigenbasis(memory=0.95, every=10),
    "eigenbasis, slow moments": Eigenbasis(power=3.0),
    "eigenbasis, slow moments, every 2": Eigenbasis(every=2),
    "eigenbasis, slow moments, ever less often": Eigenbasis(power=3.0, every=10, grow=32),
    "eigenbasis, no newest": Eigenbasis(memory=0.95, newest=0.0),
    "eigenbasis, short side": Eigenbasis(memory=0.95, small=True),
    "eigenbasis, then orthogonal": Eigenbasis(memory=0.95, then=True),
    "blocks of 16 rows": Blocks(),
    "reused 4 times": Reused(),
    "levelled": Levelled(),
}
VARIANTS = {
    **{name: replace(update, bound=None) for name, update in UNBOUNDED.items()},
    **{f"{name}, bounded": update for name, update in UNBOUNDED.items()},
}
"""Directions by name; the bounded ones are at most twice as long as the optimizer's updates."""


def main() -> None:
    """Train, and add lines."""
    parser = argparse.ArgumentParser(description="Train corrected updates of other directions.")
    parser.add_argument("names", nargs="+", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["gpt-0.2m", "cnn", "inr"])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names:
        told, seeds = {"direction": name}, range(options.seeds)
        kept = ("loss", "full_steps", "seconds")
        add_runs(VARIANTS[name], told, options.tasks, seeds, RESULTS, kept)


if __name__ == "__main__":
    main()
