"""Arrays as matrices, and the operations of their directions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache


@cache
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
    Gram matrix, root and factor, and in one of ``every`` corrections a covariance, if m is at most
    ``longest``. An inverse takes m³; on accelerators ``products`` of matrices replace it.
    """
    total = 0.0
    for shape in shapes:
        if len(shape) < 2:
            continue
        short, long = sorted(as_matrix(shape))
        rooted = short <= longest
        product = 2 * short**2 * long
        cube = short**3
        if products:
            total += (2 if rooted else 3) * (2 * product + 2 * cube)
        else:
            total += 2 * product + cube
        if rooted:
            total += product + (product + (20 if products else 3) * cube) / every
    return round(total)
