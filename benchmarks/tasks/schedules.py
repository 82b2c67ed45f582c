"""Learning-rate schedules of the tasks' recipes: a factor as a pure function of the step.

Each rises in a share of the run, its warm-up, and takes the number of steps and this share.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]
"""A function for ``LambdaLR``: from a step, counted from 0, to what multiplies the rate."""

COOLDOWN = 0.2
"""Share of the run in which the rate of ``warmup-stable-decay`` falls."""

FLOOR = 0.1
"""Where ``cosine`` ends."""

FIRST = 1 / 25
LAST = 1e-4 / 25
"""Where ``one-cycle`` starts and ends; the defaults of ``torch.optim.lr_scheduler.OneCycleLR``."""


def linear_schedule(total: int, warmup_fraction: float) -> Schedule:
    """A linear rise to 1, then a linear fall to 0."""
    warmup = max(1, round(warmup_fraction * total))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / max(1, total - warmup))

    return factor


def constant_schedule(total: int, warmup_fraction: float) -> Schedule:
    """A linear rise, then 1 to the end; without warm-up 1 from the first step."""
    warmup = max(1, round(warmup_fraction * total))
    return lambda step: min(1.0, (step + 1) / warmup)


def stable_decay_schedule(total: int, warmup_fraction: float) -> Schedule:
    """A linear rise, then 1, then a linear fall to 0 (Haegele et al., 2024, arXiv 2405.18392)."""
    rise = constant_schedule(total, warmup_fraction)
    cooldown = max(1, round(COOLDOWN * total))
    return lambda step: min(rise(step), max(0.0, (total - step) / cooldown))


def cosine_schedule(total: int, warmup_fraction: float) -> Schedule:
    """A linear rise, then half a cosine down to a tenth, as in nanoGPT (Karpathy, 2022)."""
    rise = constant_schedule(total, warmup_fraction)
    warmup = round(warmup_fraction * total)

    def factor(step: int) -> float:
        if step < warmup:
            return rise(step)
        return _cosine(1.0, FLOOR, min(1.0, (step - warmup) / max(1, total - warmup)))

    return factor


def one_cycle_schedule(total: int, warmup_fraction: float) -> Schedule:
    """Half a cosine up and another down, as `OneCycleLR` (Smith and Topin, 2018, arXiv 1708.07120).

    Adam's momentum stays.
    """
    peak = max(1.0, warmup_fraction * total - 1)

    def factor(step: int) -> float:
        if step <= peak:
            return _cosine(FIRST, 1.0, step / peak)
        return _cosine(1.0, LAST, min(1.0, (step - peak) / max(1.0, total - 1 - peak)))

    return factor


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


SCHEDULES: dict[str, Callable[[int, float], Schedule]] = {
    "linear": linear_schedule,
    "constant": constant_schedule,
    "cosine": cosine_schedule,
    "one-cycle": one_cycle_schedule,
    "warmup-stable-decay": stable_decay_schedule,
}
"""The schedules by name."""
