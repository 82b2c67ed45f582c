"""The learning-rate schedule of the demo and of the benchmark."""

from __future__ import annotations

from collections.abc import Callable


def linear_schedule(total: int, warmup_fraction: float) -> Callable[[int], float]:
    """The learning rate's factor by step: a linear rise, then a linear fall to zero.

    Args:
        total: Steps of the schedule.
        warmup_fraction: Share of them in which the factor rises.

    Returns:
        A function for ``LambdaLR``.
    """
    warmup = max(1, round(warmup_fraction * total))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / max(1, total - warmup))

    return factor
