"""The budget of corrected updates: how often each matrix is corrected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

SMALLEST_STEP = 1e8
"""Smallest number of operations of a full step in the budget of corrections. In small models, most
of a full step's time is spent on calling the library, not on operations."""

LONGEST_PERIOD = 6
"""Most full steps from one correction of a matrix to the next. Rarer ones are worth less than the
1.5 full steps that the default saves (decision 12)."""

NONE_FIT = "max_overhead allows no corrected updates; for these set"
"""Beginning of advice where a budget is too small; :func:`remedies` follows."""


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows (the first dimension) and columns of an array; a vector has one row."""
    if len(shape) > 1:
        return shape[0], math.prod(shape[1:])
    return 1, math.prod(shape)


def direction_operations(
    shapes: Iterable[Sequence[int]], longest: int, every: int, *, products: bool
) -> int:
    """Return the operations of the directions of matrices; vectors take none.

    For m rows and n columns, with m up to n, these are 2 m² n for each product with the matrix: its
    Gram matrix, root and factor, and every so many corrections a covariance. An inverse takes m³.

    Args:
        shapes: Those of the tensors.
        longest: Longest side that has a covariance.
        every: Corrections of a matrix from one that updates its covariance to the next.
        products: Whether inverses are replaced by matrix products, as on accelerators.
    """
    total = 0.0
    for shape in shapes:
        if len(shape) < 2:
            continue
        short, long = sorted(as_matrix(shape))
        rooted = short <= longest
        product, cube = 2 * short**2 * long, short**3
        if products:
            total += (2 if rooted else 3) * (2 * product + 2 * cube)
        else:
            total += 2 * product + cube
        if rooted:
            total += product + (product + (20 if products else 3) * cube) / every
    return round(total)


def budget(step_operations: float, max_overhead: float) -> float:
    """Return the operations that corrections may add to a full step of so many operations."""
    return max_overhead * max(step_operations, SMALLEST_STEP)


def shortest_period(operations: Callable[[int], float], allowed: float) -> int | None:
    """Return the shortest period whose corrections are within a budget; None if none is.

    Args:
        operations: What correcting adds to an average full step, by the period.
        allowed: The budget.
    """
    periods = range(1, LONGEST_PERIOD + 1)
    return next((period for period in periods if operations(period) <= allowed), None)


def remedies(
    needed: float, step_operations: float, max_overhead: float, samples: int | None
) -> str:
    """Return what would allow so many operations of corrections in a full step, in words.

    Args:
        needed: Operations that corrections need in an average full step.
        step_operations: Operations of a plain full step.
        max_overhead: The present limit.
        samples: Samples of a batch; None if they are not known.
    """
    share = needed / budget(step_operations, 1.0)
    digits = 1 - math.floor(math.log10(share))
    enough = round(math.ceil(share * 10.0**digits) / 10.0**digits, max(0, digits))
    overhead, allowed = f"max_overhead={enough:g}", max_overhead * step_operations
    if not allowed:
        return overhead
    factor = needed / allowed
    larger = f"batches {math.ceil(10 * factor) / 10:,g} times as large"
    if samples is not None:
        larger = f"batches of at least {math.ceil(samples * factor):,} samples (now {samples:,})"
    return f"{larger}, or {overhead}"


def describe_period(period: int, max_overhead: float) -> str:
    """Return a message about the full steps in which a matrix is corrected."""
    text = f"each matrix is corrected in one of {period} full steps"
    return f"{text}, which max_overhead={max_overhead:g} allows"
