"""Which rank owns which matrix, and in which full step of a period each is corrected."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

MOST_TOGETHER = 2**26
"""Elements of sharded matrices that are whole on one rank at a time; a larger one comes alone."""


def deal(work: Sequence[int], ranks: int, first: int = 0) -> list[int]:
    """Deal pieces of work to ranks, the largest first, each to the rank with the least so far.

    Full steps of a period are dealt matrices in the same way, so that they cost alike.

    The result depends on the arguments alone, so every rank finds the same without communication.

    Args:
        work: Counted work of each piece.
        ranks: Number of ranks, or of full steps.
        first: Rank that comes first among ranks with equal work.

    Returns:
        The rank of each piece, from 0.
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

    Args:
        work: The rank that finds the direction of each, and the operations of that.
        period: Full steps from one correction of a matrix to the next.
    """
    found = [0] * len(work)
    for rank in {rank for rank, _ in work}:
        members = [k for k, (owner, _) in enumerate(work) if owner == rank]
        dealt = deal([work[k][1] for k in members], period)
        for k, turn in zip(members, dealt, strict=True):
            found[k] = turn
    return found


def rounds(sizes: Sequence[int], owners: Sequence[int], most: int) -> list[list[int]]:
    """Divide tensors into rounds in which no owner has more than ``most`` elements, or one tensor.

    Args:
        sizes: Elements of each tensor.
        owners: Rank that owns it.
        most: Most elements of one owner in a round.
    """
    parts: list[list[int]] = []
    number, filled = Counter[int](), Counter[int]()
    for k, (size, owner) in enumerate(zip(sizes, owners, strict=True)):
        if filled[owner] and filled[owner] + size > most:
            number[owner] += 1
            filled[owner] = 0
        filled[owner] += size
        parts += [[] for _ in range(number[owner] + 1 - len(parts))]
        parts[number[owner]].append(k)
    return parts
