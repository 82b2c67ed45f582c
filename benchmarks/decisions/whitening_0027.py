"""Whitening by matrix products alone: what of it can be left out.

``python -m benchmarks.decisions.whitening_0027 NAME... --tasks TASK... --seeds SEED...`` trains as
``whitening_0026`` does, and adds lines to ``docs/results/whitening-0027.jsonl``; ``--table`` prints
the means of what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.decisions.directions_0018 import Prototype
from benchmarks.decisions.runs import FOLDER
from benchmarks.decisions.whitening_0026 import TINY, fourth_root, run
from hybrid_predict.updates import SpectralUpdate, WhitenedUpdate

RESULTS = FOLDER / "whitening-0027.jsonl"


@dataclass(frozen=True, kw_only=True)
class Products(Prototype):
    r"""Multiplied with inverse fourth roots of the covariances, found by polynomials.

    Args:
        ratio: Longest side that is whitened, in shorter sides.
        squares: Whether longer sides are divided by roots of the squares of their entries.
        rank: Eigenvectors of longer sides, in shorter sides; the rest shares one root. 0 for none.
        unit: Whether every gradient counts with length one.
        half: Whether covariances and roots have 16 bits.
        covariance: Decay of covariances per full step.
        seen: Full steps between two gradients that are added to the covariances.
        every: Full steps between two computations of the roots.
        first: Polynomials for the inverse square root.
    """

    ratio: float = 1e9
    squares: bool = False
    rank: float = 0.0
    unit: bool = False
    half: bool = False
    covariance: float = 0.95
    seen: int = 1
    every: int = 10
    first: int = 3

    def make(self, own: dict[Any, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """The levelled orthogonal factor of the product."""
        step, short = own["steps"], min(target.shape)
        if self.unit:
            newest = newest / newest.norm().clamp_min(TINY)
        for axis, rows in enumerate((newest, newest.T)):
            whole = len(rows) <= self.ratio * short or self.rank > 0
            if not whole and not self.squares:
                continue
            if step % self.seen == 0 or step < 3:
                new = rows @ rows.T if whole else rows.square().sum(1)
                self._see(own, axis, new)
            if step % self.every == 0 or step in (2, 5):
                own[axis, "root"] = self._root(own[axis].float(), short).to(own[axis])
        for axis in (0, 1):
            root = own.get((axis, "root"))
            if root is None:
                continue
            root = root.float() if root.dim() > 1 else root.float().diag()
            target = target @ root if axis else root @ target
        return self.orthogonal(own, target)

    def _see(self, own: dict[Any, Any], axis: int, new: Tensor) -> None:
        decay = self.covariance**self.seen
        new = new.to(torch.bfloat16 if self.half else torch.float32)
        own[axis] = own[axis].lerp_(new, 1 - decay) if axis in own else new * (1 - decay)

    def _root(self, covariance: Tensor, short: int) -> Tensor:
        if covariance.dim() == 1:
            return (covariance / covariance.mean().clamp_min(TINY) + 1e-2) ** -0.25
        if self.rank and len(covariance) > 2 * short:
            return _low_rank(covariance, int(self.rank * short))
        return fourth_root(covariance.unsqueeze(0), self.first)[0]


def _low_rank(covariance: Tensor, rank: int) -> Tensor:
    """The inverse fourth root; the smaller eigenvalues are replaced by their mean."""
    values, basis = torch.linalg.eigh(covariance.double())
    values = values.clamp_min(0.0) + 1e-4 * values.max()
    rest = values[:-rank].mean() ** -0.25
    basis, factors = basis[:, -rank:], values[-rank:] ** -0.25 - rest
    whole = rest * torch.eye(len(covariance), dtype=torch.float64)
    return ((basis * factors) @ basis.T + whole).float()


WAYS: dict[str, SpectralUpdate] = {
    "both sides": Products(),
    "both sides, orthogonal by 2 polynomials": Products(iterations=2),
    "both sides, gradients every 5th, roots every 20th": Products(seen=5, every=20),
    "sides up to twice the shorter one": Products(ratio=2),
    "sides up to twice the shorter one, gradients every 5th, roots every 20th": Products(
        ratio=2, seen=5, every=20
    ),
    "long sides by their squares alone, gradients every 5th, 2 polynomials": Products(
        ratio=1.5, squares=True, seen=5, every=20, iterations=2
    ),
    "long sides by as many directions as the shorter side has": Products(rank=1.0),
    "both sides, gradients of unit length": Products(unit=True),
    "the same, covariances and roots in 16 bits": Products(unit=True, half=True),
    "the same, gradients every 5th": Products(unit=True, seen=5),
    "the same, decay .9": Products(unit=True, covariance=0.9),
    "the same, decay .98": Products(unit=True, covariance=0.98),
    "the same, orthogonal by 2 polynomials": Products(unit=True, iterations=2),
    "the same, roots by 2 + 2 polynomials": Products(unit=True, first=2),
    "the same, any length": Products(unit=True, bound=None),
    "the whitened update": WhitenedUpdate(),
    "orthogonal (the default), half of every update": SpectralUpdate(share=0.5),
    "orthogonal (the default), a fifth of every update": SpectralUpdate(share=0.2),
}
"""Updates by name."""


if __name__ == "__main__":
    run("Train updates that are whitened by products.", WAYS, RESULTS)
