"""The learning-rate schedule of the demo and of the benchmark."""

from __future__ import annotations

from collections.abc import Callable


def linear_schedule(total: int, warmup_fraction: float) -> Callable[[int], float]:
    """Return a schedule that rises linearly to 1, then falls linearly to 0.

    Args:
        total: Number of steps.
        warmup_fraction: Share of the steps in which the factor rises.

    Returns:
        The factor of the learning rate by step, for ``LambdaLR``.
    """
    warmup = max(1, round(warmup_fraction * total))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / max(1, total - warmup))

    return factor
