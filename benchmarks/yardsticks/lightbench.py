"""LightBench: small problems that trap optimizers, each until its published target is reached.

Problems, targets and AdamW's winning learning rates are those of LightBench 0.1.1
(github.com/HomebrewML/LightBench), the rates from its table of results. Betas are AdamW's defaults,
since the table rounds the winning ones, and there is no warm-up.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.tasks import Task
from benchmarks.yardsticks.plan import Case, Yardstick, constant
from benchmarks.yardsticks.traps import Trap
from benchmarks.yardsticks.xor import XorTask

ARMS = ("plain", "corrected", "hybrid", "auto")

STEPS, RECURRENT_STEPS = 4000, 2000
"""Most full steps of a run."""

EVERY = 10
"""Full steps between evaluations of recurrent nets, whose evaluation costs as much as a step."""


class Level(NamedTuple):
    """A difficulty of a problem: its parameter, and the rate with which AdamW won."""

    name: str
    parameter: float
    rate: float


TRAPS: dict[str, tuple[float, bool, tuple[Level, ...]]] = {
    "rosenbrock": (1e-9, True, (Level("trivial", 1, 0.14105),)),
    "beale": (1e-8, True, (Level("trivial", 1, 0.21689),)),
    "rastrigin": (1e-2, True, (Level("trivial", 10, 1.52026),)),
    "saddle_point": (0.1, True, (
        Level("trivial", 1, 0.01105), Level("easy", 2, 0.01105), Level("medium", 4, 0.01105),
        Level("hard", 8, 0.01105),
    )),
    "plateau_navigation": (1e-4, True, (
        Level("trivial", 1, 0.01105), Level("easy", 4, 0.01105), Level("medium", 8, 0.01105),
    )),
    "layer_wise_scale": (1e-4, False, (
        Level("trivial", 2, 0.00116), Level("medium", 1e3, 0.00116),
    )),
    "parameter_scale": (1e-4, False, (
        Level("easy", 10, 0.00967), Level("medium", 1e3, 1.34106),
    )),
    "scale_invariant": (1e-3, False, (
        Level("trivial", 1, 0.05949), Level("easy", 2, 0.01981), Level("medium", 3, 0.32455),
        Level("hard", 4, 0.91272),
    )),
    "quadratic_varying_scale": (1e-7, False, (
        Level("trivial", 4, 0.00116), Level("medium", 512, 0.00116),
    )),
    "quadratic_varying_target": (1e-8, False, (
        Level("trivial", 4, 0.03389), Level("medium", 512, 0.00451),
    )),
    "gradient_noise_scale": (1e-3, False, (
        Level("trivial", 32, 0.00116), Level("nightmare", 1, 0.00116),
    )),
    "batch_size_scaling": (1e-8, False, (
        Level("trivial", 65536, 0.00116), Level("nightmare", 2, 0.00116),
    )),
    "discontinuous_gradient": (1e-4, False, (Level("trivial", 1, 0.00367),)),
    "wide_linear": (1e-3, False, (Level("trivial", 4, 0.001), Level("easy", 32, 0.001))),
}  # fmt: skip
"""Target of each family, whether its start is fixed, and its levels.

AdamW never won `wide_linear`; the rate is that of the closest try.
"""

PARITY, EXCLUSIVE = 1e-3, 1e-2
"""Targets of the recurrent nets."""

RECURRENT: dict[bool, tuple[Level, ...]] = {
    True: (Level("trivial", 4, 0.01105), Level("easy", 8, 0.00116), Level("medium", 16, 0.02504)),
    False: (Level("trivial", 2, 0.01105), Level("easy", 4, 0.01105), Level("medium", 6, 0.00116)),
}
"""Levels of `xor_digit`, the parity, and of `xor_sequence`; their parameter is the length."""


def _case(task: Task, target: float, *, fixed: bool = False, every: int = 1) -> Case:
    won = "never won" if task.name.startswith("wide_linear") else "won"
    return Case(task=task, target=target, fixed=fixed, every=every, published=won)


def _traps() -> tuple[Case, ...]:
    return tuple(
        _case(
            Trap(name=f"{family}-{level.name}", title=family, steps=STEPS, family=family,
                 level=level.parameter, recipe=constant(level.rate)),
            target, fixed=fixed,
        )
        for family, (target, fixed, levels) in TRAPS.items() for level in levels
    )  # fmt: skip


def _recurrent() -> tuple[Case, ...]:
    return tuple(
        _case(
            XorTask(name=f"{'xor_digit' if parity else 'xor_sequence'}-{level.name}",
                    title="recurrent net on bits", steps=RECURRENT_STEPS, parity=parity,
                    length=int(level.parameter), recipe=constant(level.rate)),
            PARITY if parity else EXCLUSIVE, every=EVERY,
        )
        for parity, levels in RECURRENT.items() for level in levels
    )  # fmt: skip


LIGHTBENCH = Yardstick(name="lightbench", arms=ARMS, cases=(*_traps(), *_recurrent()), seeds=2)
