"""Gradients whitened by their covariances before they are made orthogonal.

``python -m benchmarks.decisions.whitening_0026 NAME... --tasks TASK... --seeds SEED...`` trains
corrected updates alone for T / 1.5 full steps, at the rates of ``docs/results/bench-*.json``,
whatever correcting costs, and adds one line per run to ``docs/results/whitening-0026.jsonl``.
``--table`` prints the means of what is there, and the geometric mean of speedups at equal quality.
Unless a name says otherwise, corrected updates are at most twice as long as the optimizer's.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.arms import PLAIN
from benchmarks.decisions.directions_0018 import Prototype
from benchmarks.decisions.runs import FOLDER, add_runs, benchmark
from benchmarks.tasks import TASKS
from hybrid_predict.runs.evidence import speedup
from hybrid_predict.rules.polynomials import POLYNOMIALS
from hybrid_predict.tensors.spectrum import lengths, polynomial
from hybrid_predict.updates import SpectralUpdate

RESULTS = FOLDER / "whitening-0026.jsonl"
SUITE = ("gpt-0.2m", "cnn", "inr", "mlp", "lora", "pinn", "autoencoder")
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Eigenbasis(Prototype):
    r"""Divided by a power of second moments in the eigenbases of the covariances (SOAP).

    .. math:: O = \operatorname{orth} \bigl( Q_L \, [(Q_L^\top M Q_R) / (V^p +
        f \max V^{1/2})] \, Q_R^\top \bigr)

    Args:
        power: p; one half in SOAP.
        floor: f, so that small moments do not count in full.
        cosine: Whether p is multiplied with one plus the averaged cosine of gradient and average.
        memory: Decay of second moments V.
        covariance: Decay of covariances.
        every: Full steps between two turns of the bases by one QR iteration.
        constant: Whether the share of the newest gradient is the same at any angle.
        short: Whether the longer side has no basis.
        then: Whether the outcome is made orthogonal.
    """

    power: float = 0.5
    floor: float = 1e-8
    cosine: bool = False
    memory: float = 0.95
    covariance: float = 0.95
    every: int = 10
    constant: bool = False
    short: bool = False
    then: bool = True

    def blend(self, cosine: float) -> float:
        """Share of the newest gradient."""
        return self.newest if self.constant else super().blend(cosine)

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """The levelled orthogonal factor of what was divided."""
        step, power = own["steps"], self.power
        for side, seen in _covariances(newest, self.short).items():
            if step == 0:
                own[side], own[f"{side} basis"] = seen, torch.linalg.eigh(seen)[1].flip(1)
                continue
            own[side].lerp_(seen, 1.0 - self.covariance)
            if step % self.every == 0:
                own[f"{side} basis"] = torch.linalg.qr(own[side] @ own[f"{side} basis"])[0]
        left, right = (own.get(f"{side} basis", _Same()) for side in ("left", "right"))
        moments = own.setdefault("moments", torch.zeros_like(newest))
        moments.lerp_((left.T @ newest @ right).square(), 1.0 - self.memory)
        if self.cosine:
            own["angle"] = 0.95 * own.get("angle", 0.0) + 0.05 * own["cosine"]
            own["count"] = 0.95 * own.get("count", 0.0) + 0.05
            power *= min(1.0, max(0.0, 1.0 + own["angle"] / own["count"]))
        divisor = moments**power + self.floor * moments.max().sqrt() + TINY
        made = left @ ((left.T @ target @ right) / divisor) @ right.T
        return self.orthogonal(own, made) if self.then else made


@dataclass(frozen=True, kw_only=True)
class Roots(Prototype):
    r"""Multiplied with inverse roots of the covariances (Shampoo), then made orthogonal.

    .. math:: L \leftarrow \rho L + (1 - \rho) G G^\top, \qquad
        R \leftarrow \rho R + (1 - \rho) G^\top G, \qquad
        O = \operatorname{orth} \bigl( L^{-a} M R^{-a} \bigr)

    Args:
        power: a; one quarter in Shampoo (Gupta et al., 2018).
        short: Whether the longer side is left alone.
        least: Added to eigenvalues, in largest eigenvalues.
        covariance: :math:`\rho`.
        every: Full steps between two computations of the roots.
    """

    power: float = 0.25
    short: bool = False
    least: float = 1e-4
    covariance: float = 0.95
    every: int = 10

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """The levelled orthogonal factor of the product."""
        step, sides = own["steps"], _covariances(newest, self.short)
        for side, seen in sides.items():
            own[side] = seen if step == 0 else own[side].lerp_(seen, 1.0 - self.covariance)
            if step % self.every == 0 or step < 3:
                own[f"{side} root"] = self._root(own[side])
        made = own["left root"] @ target if "left" in sides else target
        return self.orthogonal(own, made @ own["right root"] if "right" in sides else made)

    def _root(self, covariance: Tensor) -> Tensor:
        values, basis = torch.linalg.eigh(covariance.double())
        values = values.clamp_min(0.0)
        values = values / values.max().clamp_min(TINY) + self.least
        return ((basis * values**-self.power) @ basis.T).float()


@dataclass(frozen=True, kw_only=True)
class BlockRoots(Prototype):
    """The same by matrix products alone: the longer side in blocks as long as the shorter one.

    Args:
        covariance: Decay of covariances per full step.
        seen: Full steps between two gradients that are added to the covariances.
        every: Full steps between two computations of the roots.
    """

    covariance: float = 0.95
    seen: int = 1
    every: int = 10

    def make(self, own: dict[str, Any], target: Tensor, newest: Tensor, number: int) -> Tensor:
        """The levelled orthogonal factor of the product."""
        tall, step = target.shape[0] > target.shape[1], own["steps"]
        wide, gradient = (target.T, newest.T) if tall else (target, newest)
        if step % self.seen == 0:
            decay, blocks = self.covariance**self.seen, _blocks(gradient)
            for side, new in {
                "left": (gradient @ gradient.T).unsqueeze(0),
                "right": blocks.mT @ blocks,
            }.items():
                own.setdefault(side, torch.zeros_like(new)).lerp_(new, 1.0 - decay)
        if step % self.every == 0 or step in (2, 5):
            own["left root"] = fourth_root(own["left"])
            own["right root"] = _scaled(fourth_root(own["right"]), own["right"])
        made = _blocks(own["left root"][0] @ wide) @ own["right root"]
        made = made.permute(1, 0, 2).reshape(len(wide), -1)[:, : wide.shape[1]]
        return self.orthogonal(own, (made.T if tall else made).contiguous())


class _Same:
    """The identity, which a side without a basis is multiplied with."""

    @property
    def T(self) -> _Same:
        """Itself."""
        return self

    def __matmul__(self, other: Tensor) -> Tensor:
        return other

    __rmatmul__ = __matmul__


def _covariances(newest: Tensor, short: bool) -> dict[str, Tensor]:
    """Of rows and columns, or of the shorter side alone."""
    sides = {"left": newest @ newest.T, "right": newest.T @ newest}
    if short:
        del sides["right" if newest.shape[0] <= newest.shape[1] else "left"]
    return sides


def _blocks(wide: Tensor) -> Tensor:
    """Square blocks of the columns of (m, n), shape (n / m, m, m); zeros fill the last one."""
    rows, columns = wide.shape
    return F.pad(wide, (0, -columns % rows)).reshape(rows, -1, rows).permute(1, 0, 2)


def _inverse_root(stack: Tensor, polynomials: int) -> Tensor:
    """Inverse square roots of symmetric matrices, but for their scale."""
    return polynomial(stack / (1.01 * lengths(stack @ stack).sqrt()), POLYNOMIALS[polynomials])


def fourth_root(stack: Tensor, first: int = 3) -> Tensor:
    """Inverse fourth roots: the square root B p(B) of an inverse square root B."""
    root = _inverse_root(stack, first)
    root = root / (1.01 * lengths(root @ root).sqrt())
    return root @ polynomial(root, POLYNOMIALS[2])


def _scaled(roots: Tensor, covariances: Tensor) -> Tensor:
    """Roots whose products with the covariances have the same trace in every block."""
    product = roots @ roots @ roots @ roots @ covariances
    traces = product.diagonal(dim1=1, dim2=2).mean(1).clamp_min(TINY)
    return roots / (traces**0.25).view(-1, 1, 1)


WAYS: dict[str, SpectralUpdate] = {
    "orthogonal (the default)": SpectralUpdate(),
    "eigenbases, then orthogonal": Eigenbasis(),
    "the same, newest gradient .05": Eigenbasis(newest=0.05, constant=True),
    "eigenbases alone, newest gradient .05": Eigenbasis(newest=0.05, constant=True, then=False),
    "eigenbases, floor .1": Eigenbasis(floor=0.1),
    "eigenbases, power by the cosine": Eigenbasis(cosine=True),
    "eigenbases, power .25": Eigenbasis(power=0.25),
    "eigenbases, power .25, any length": Eigenbasis(power=0.25, bound=None),
    "eigenbasis of the shorter side, power .25": Eigenbasis(power=0.25, short=True),
    "eigenbasis of the shorter side, power .5": Eigenbasis(short=True),
    "roots of both sides": Roots(),
    "roots of both sides, eigenvalues at least .01": Roots(least=1e-2),
    "roots of the shorter side, power .5": Roots(power=0.5, short=True),
    "roots in blocks": BlockRoots(),
    "roots in blocks, 2 polynomials": BlockRoots(iterations=2),
    "roots in blocks, 2 polynomials, seldom": BlockRoots(iterations=2, seen=5, every=20),
}
"""Updates by name."""


def run(description: str, ways: Mapping[str, SpectralUpdate], path: Path) -> None:
    """Train what the command line names and add lines, or print means.

    Args:
        description: What the command does.
        ways: Updates by name.
        path: The file of lines.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=SUITE, metavar="TASK")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="SEED")
    parser.add_argument("--table", action="store_true", help="Print means of what is there.")
    options = parser.parse_args()
    if options.table:
        _table(path)
    torch.set_num_threads(1)
    for name in options.names:
        told, seeds = {"way": name}, options.seeds
        add_runs(ways[name], told, options.tasks, seeds, path, max_overhead=1e9)


def _table(path: Path) -> None:
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found[row["way"]][row["task"]][row["seed"]] = row["loss"]
    for way, tasks in found.items():
        means = [f"{t} {mean(by.values()):.4g} ({len(by)})" for t, by in tasks.items()]
        known = all(task in tasks for task in SUITE)
        gain = geometric_mean(_speedup(task, tasks[task]) for task in SUITE) if known else nan
        print(f"{way}: {', '.join(means)}; speedup {gain:.2f}")


def _speedup(task: str, losses: dict[int, float]) -> float:
    """At equal quality, or at least, with the plain runs of the same seeds."""
    plain: dict[int, dict[int, float]] = defaultdict(dict)
    for row in benchmark():
        if row["task"] == task and row["setting"] == "tuned" and row["arm"] in PLAIN:
            plain[row["full_steps"]][row["seed"]] = row["loss"]
    lengths = sorted(n for n in plain if losses.keys() <= plain[n].keys())
    budget = next(row["full_steps"] for row in benchmark()
                  if (row["task"], row["arm"]) == (task, "short"))  # fmt: skip
    seeds = sorted(losses)
    curve = [[plain[n][seed] for seed in seeds] for n in lengths]
    found = [losses[seed] for seed in seeds]
    return speedup(lengths, curve, found, [budget] * len(seeds), resamples=1).value


if __name__ == "__main__":
    run("Train whitened corrected updates.", WAYS, RESULTS)
