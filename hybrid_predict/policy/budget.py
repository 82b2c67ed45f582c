"""The budget of corrected updates: how often each matrix is corrected, and when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

SMALLEST_STEP = 1e8
"""Smallest number of operations of a full step in the budget of corrections. In small models, most
of a full step's time is spent on calling the library, not on operations."""

LONGEST_PERIOD = 6
"""Most full steps from one correction of a matrix to the next. Rarer ones are worth less than the
1.5 full steps that the default saves (decision 12)."""

NONE_FIT = "max_overhead allows no corrected updates; use larger batches, or for slower steps set"
"""Beginning of advice where a budget is too small; :func:`fitting` follows."""


def budget(step_operations: float, max_overhead: float) -> float:
    """Return the operations that corrections may add to a full step of so many operations."""
    return max_overhead * max(step_operations, SMALLEST_STEP)


def shortest_period(operations: Callable[[int], float], allowed: float) -> int | None:
    """Return the shortest period within a budget, None if none is, by operations per period."""
    periods = range(1, LONGEST_PERIOD + 1)
    return next((period for period in periods if operations(period) <= allowed), None)


def fitting(needed: float, step_operations: float) -> str:
    """Return the smallest ``max_overhead``, as an argument, that allows ``needed`` operations."""
    share = needed / budget(step_operations, 1.0)
    digits = 1 - math.floor(math.log10(share))
    enough = round(math.ceil(share * 10.0**digits) / 10.0**digits, max(0, digits))
    return f"max_overhead={enough:g}"


def deal(work: Sequence[int], ranks: int, first: int = 0) -> list[int]:
    """Deal pieces of counted work, the largest first, each to the rank with the least so far.

    Every rank finds the same. Full steps of a period take the place of ranks in :func:`turns`.
    ``first`` comes first among ranks with equal work. Return the rank of each piece, from 0.
    """
    owners = [0] * len(work)
    loads = [(0, place) for place in range(ranks)]  # a heap
    for k in sorted(range(len(work)), key=lambda k: -work[k]):
        load, place = loads[0]
        heapq.heapreplace(loads, (load + work[k], place))
        owners[k] = (place + first) % ranks
    return owners


def turns(work: Sequence[tuple[int, int]], period: int) -> list[int]:
    """Return in which full step of a period each matrix is corrected, so that they cost alike.

    ``work`` has the rank that finds the direction of each matrix, and the operations of that.
    """
    found = [0] * len(work)
    for rank in {rank for rank, _ in work}:
        members = [k for k, (owner, _) in enumerate(work) if owner == rank]
        dealt = deal([work[k][1] for k in members], period)
        for k, turn in zip(members, dealt, strict=True):
            found[k] = turn
    return found
