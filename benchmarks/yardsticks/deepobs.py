"""DeepOBS's problems that need no download: a noisy quadratic, and noisy functions of two numbers.

References:
    Schneider, Balles and Hennig, DeepOBS: A Deep Learning Optimizer Benchmark Suite (ICLR 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.stats import special_ortho_group  # type: ignore[import-untyped,unused-ignore]
from torch import Generator, Tensor

from benchmarks.yardsticks.plan import Case, Yardstick, constant
from benchmarks.yardsticks.points import PointTask, beale, rosenbrock

ARMS = ("short", "plain", "plain-double", "corrected", "hybrid", "auto")

BATCH, DIMENSIONS, EXAMPLES = 128, 100, 1000


def branin(x: Tensor, y: Tensor) -> Tensor:
    """Branin's function; its minimum is 0.3979 at three points."""
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * x.cos() + 10


Function = Callable[[Tensor, Tensor], Tensor]

FUNCTIONS: dict[str, tuple[Function, tuple[float, float]]] = {
    "rosenbrock": (lambda x, y: rosenbrock(x, y, 100.0), (-0.5, 1.5)),
    "beale": (beale, (-4.5, 4.5)),
    "branin": (branin, (2.5, 12.5)),
}
"""Functions of two numbers by name, and where they start."""


@dataclass(frozen=True, kw_only=True)
class TwoNumbers(PointTask):
    """A function f(u, v) with the noise u x + v y; x and y are means of standard normal draws."""

    metric = "loss without noise"
    function: str

    def start(self) -> Tensor:
        return torch.tensor(FUNCTIONS[self.function][1])

    def value(self, x: Tensor, step: int, generator: Generator) -> Tensor:
        noise = torch.randn(2, BATCH, generator=generator, dtype=x.dtype).mean(1)
        return self.judged(x) + (x * noise).sum()

    def judged(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.function][0](*x)


@lru_cache(maxsize=1)
def quadratic() -> tuple[Tensor, Tensor, Tensor]:
    """Return the Hessian, and the centres for training and for the test, float64.

    A tenth of the eigenvalues are from 30 to 60, the others below 1; the centres have noise 0.6.
    """
    chance = np.random.RandomState(42)
    values = np.concatenate((chance.uniform(0, 1, 90), chance.uniform(30, 60, 10)))
    turn = special_ortho_group.rvs(DIMENSIONS, random_state=chance)
    hessian = torch.tensor(turn.T @ np.diag(values) @ turn)
    shape = (EXAMPLES, DIMENSIONS)
    centres = (np.random.RandomState(seed).normal(0, 0.6, shape) for seed in (42, 43))
    train, test = map(torch.tensor, centres)
    return hessian, train, test


@dataclass(frozen=True, kw_only=True)
class Quadratic(PointTask):
    """The mean over centres of a quadratic form in 100 dimensions, from a vector of ones."""

    metric = "test loss"

    def start(self) -> Tensor:
        return torch.ones(DIMENSIONS)

    def value(self, x: Tensor, step: int, generator: Generator) -> Tensor:
        return _form(x, torch.randint(EXAMPLES, (BATCH,), generator=generator))

    def judged(self, x: Tensor) -> Tensor:
        return _form(x, None)


def _form(x: Tensor, chosen: Tensor | None) -> Tensor:
    """Return the loss on chosen centres for training, or on all of the test."""
    hessian, train, test = quadratic()
    away = x - (test if chosen is None else train[chosen])
    return 0.5 * (away @ hessian * away).sum(1).mean()


_QUADRATIC = Quadratic(
    name="quadratic_deep", title="noisy quadratic", steps=700, recipe=constant(0.04)
)

DEEPOBS = Yardstick(
    name="deepobs",
    arms=ARMS,
    cases=(
        Case(task=_QUADRATIC, published="least possible: 85.2457"),
        *(
            Case(
                task=TwoNumbers(
                    name=f"two_d_{name}", title=name, steps=1000, function=name,
                    recipe=constant(0.1),
                ),
                published=f"least possible: {least}",
            )
            for name, least in {"rosenbrock": 0, "beale": 0, "branin": 0.3979}.items()
        ),
    ),
)  # fmt: skip
