"""The budget of corrected updates: how many rows of a matrix they treat together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

SMALLEST_STEP = 1e8
"""Smallest number of operations of a full step in the budget of corrections. In small models, most
of a full step's time is spent on calling the library, not on operations."""

BLOCKS = (None, *(2**k for k in range(13, -1, -1)))  # rows treated together, from all to one

LEAST_PART = 8
"""A correction is weak if its block has less than one in this many rows of a matrix: two thirds of
the full steps with weak corrections end worse than all full steps (decision 19)."""

WEAK = "corrections are weak; for strong ones set"
"""Beginning of advice where a budget is too small; :func:`remedies` follows."""


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows (the first dimension) and columns of an array; a vector has one row."""
    if len(shape) > 1:
        return shape[0], math.prod(shape[1:])
    return 1, math.prod(shape)


def split_rows(rows: int, block: int | None) -> tuple[int, int]:
    """Split rows into parts of nearly equal size, at most ``block``; return number and size."""
    if block is None or block >= rows:
        return 1, rows
    count = -(-rows // block)
    return count, -(-rows // count)


def flatten_operations(
    shapes: Iterable[Sequence[int]], iterations: int, block: int | None, *, gram: bool
) -> int:
    """Return the operations of the products that make matrices orthogonal; vectors take none.

    With k polynomials, a block of m rows and n columns takes 2 k m³ + 4 k m² n operations if the
    polynomials of X are evaluated one after the other, and (8 k - 6) m³ + 4 m² n if they are
    evaluated on the Gram matrix and multiplied with X at the end, as wide blocks may be (``gram``).
    """
    total = 0
    for shape in shapes:
        height, width = as_matrix(shape)
        count, short = split_rows(min(height, width), block)
        if len(shape) < 2 or short < 2:
            continue
        long = max(height, width)
        if gram and uses_gram(short, long):
            total += count * (4 * short**2 * long + (8 * iterations - 6) * short**3)
        else:
            total += count * iterations * (4 * short**2 * long + 2 * short**3)
    return total


def uses_gram(short: int, long: int) -> bool:
    """Return whether evaluating polynomials on the Gram matrix takes fewer operations."""
    return 2 * long > 3 * short


def budget(step_operations: float, max_overhead: float) -> float:
    """Return the operations that corrections may add to a full step of so many operations."""
    return max_overhead * max(step_operations, SMALLEST_STEP)


def remedies(
    needed: float, step_operations: float, max_overhead: float, samples: int | None
) -> str:
    """Return what would allow so many operations of corrections in a full step, in words.

    Args:
        needed: Operations that corrections need in each full step.
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


def largest_block(
    operations: Callable[[int | None], int], allowed: float
) -> tuple[int | None, int]:
    """Return the largest block whose corrections are within a budget, or 1, and its operations."""
    for block in BLOCKS:
        if (count := operations(block)) <= allowed:
            break
    return block, count


def tried(block: int | None) -> list[int]:
    """Blocks from the largest down to one; 0 for all rows."""
    return [each or 0 for each in BLOCKS[: BLOCKS.index(block) + 1]]


def describe_block(
    block: int, max_overhead: float, updates: Iterable[Any], remedies: str = ""
) -> str:
    """Return a message about the number of rows that corrections treat together.

    ``remedies`` are empty where corrections are strong.
    """
    rows = "rows one by one" if block == 1 else f"{block} rows at a time"
    text = f"corrected updates treat {rows}, which max_overhead={max_overhead:g} allows"
    limits = sorted({update.limited(block) for update in updates} - {""})
    return "; ".join([text, *limits, *([f"{WEAK} {remedies}"] if remedies else [])])


def describe_excess(share: str, max_overhead: float) -> str:
    """Return a message that corrections exceed the budget even with one row at a time."""
    text = f"corrected updates take {share} of a full step's operations"
    return f"{text}, more than max_overhead={max_overhead:g} allows"


def weak(shapes: Sequence[Sequence[int]], block: int | None) -> bool:
    """Return whether a block of rows makes the corrections of most of these matrices weak."""
    rows = math.inf if block is None else LEAST_PART * block
    few = sum(math.prod(shape) for shape in shapes if rows < min(as_matrix(shape)))
    return 2 * few > sum(map(math.prod, shapes))
