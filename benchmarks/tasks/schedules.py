"""Learning-rate schedules of the tasks' recipes: what multiplies the rate in a step.

Each takes the step, counted from 0, the number of steps, and the share of them with the warm-up.
"""

import math

COOLDOWN = 0.2
"""Share of the run in which the rate of ``warmup-stable-decay`` falls."""

FLOOR = 0.1
"""Where ``cosine`` ends."""

FIRST = 1 / 25
LAST = 1e-4 / 25
"""Where ``one-cycle`` starts and ends; the defaults of ``torch.optim.lr_scheduler.OneCycleLR``."""


def linear(step: int, total: int, share: float) -> float:
    """A linear rise to 1, then a linear fall to 0."""
    warmup = max(1, round(share * total))
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def constant(step: int, total: int, share: float) -> float:
    """A linear rise, then 1 to the end; without warm-up 1 from the first step."""
    return min(1.0, (step + 1) / max(1, round(share * total)))


def stable_decay(step: int, total: int, share: float) -> float:
    """A linear rise, then 1, then a linear fall to 0 (Haegele et al., 2024, arXiv 2405.18392)."""
    cooldown = max(1, round(COOLDOWN * total))
    return min(constant(step, total, share), max(0.0, (total - step) / cooldown))


def cosine(step: int, total: int, share: float) -> float:
    """A linear rise, then half a cosine down to a tenth, as in nanoGPT (Karpathy, 2022)."""
    warmup = round(share * total)
    if step < warmup:
        return constant(step, total, share)
    return _wave(1.0, FLOOR, min(1.0, (step - warmup) / max(1, total - warmup)))


def one_cycle(step: int, total: int, share: float) -> float:
    """Half a cosine up and another down, as `OneCycleLR` (Smith and Topin, 2018, arXiv 1708.07120).

    Adam's momentum stays.
    """
    peak = max(1.0, share * total - 1)
    if step <= peak:
        return _wave(FIRST, 1.0, step / peak)
    return _wave(1.0, LAST, min(1.0, (step - peak) / max(1.0, total - 1 - peak)))


def _wave(start: float, end: float, part: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * part))


SCHEDULES = {
    "linear": linear,
    "constant": constant,
    "cosine": cosine,
    "one-cycle": one_cycle,
    "warmup-stable-decay": stable_decay,
}
"""The schedules by name."""
