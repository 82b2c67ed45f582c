"""Norms and inner products of whole tensors, from their local shards.

With several ranks, every rank has to make the same calls in the same order. The host never waits
for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.ranks import processes
from hybrid_predict.tensors import lists

_TINY = torch.finfo(torch.float32).tiny

Counts = Sequence[float] | None
"""One factor per tensor, with which every element counts once over the ranks; None for one rank."""


def norms(tensors: Sequence[Tensor], counts: Counts) -> Tensor:
    """Return the Frobenius norm of each tensor, shape (K,), at least 32-bit."""
    local = lists.norms(tensors)
    return local if counts is None else processes.combine(_counted(local, counts, 1), local[:0])[0]


def slopes(
    updates: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[float]],
    averages: Sequence[Tensor],
    directions: Sequence[Tensor],
    counts: Counts = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return lengths of updates, and products of them and of directions with averages.

    Each has shape (K,) and at least 32 bits. ``updates`` are lists of x, y and f, of which the
    updates are x[k] - f[k] * y[k].
    """
    if not averages:
        return (torch.zeros(0),) * 3
    after, before, factors = updates
    moved = lists.differences(after, before, factors)
    norms = lists.norms(moved)
    # One buffer at a time: each is as large as all tensors together.
    along = lists.dots(moved, averages, overwrite=True)
    del moved
    products = torch.cat([along, lists.dots(directions, averages)])
    if counts is not None:
        norms, products = processes.combine(
            _counted(norms, counts, 1), _counted(products, counts, 2)
        )
    first, second = products.chunk(2)
    return norms, first, second


def angles(
    left: Sequence[Tensor], right: Sequence[Tensor], counts: Counts
) -> tuple[Tensor, Tensor]:
    """Return norms of the left tensors, and cosines of their angles with the right ones.

    Both have shape (K,) and at least 32 bits; a cosine is 0 if either tensor is zero.
    """
    lengths = lists.norms([*left, *right])
    products = lists.dots(left, right)
    if counts is not None:
        lengths, products = processes.combine(
            _counted(lengths, counts, 1), _counted(products, counts, 2)
        )
    first, second = lengths.chunk(2)
    cosines = (products / (first * second).clamp_min(_TINY)).nan_to_num(0.0, 0.0, 0.0)
    return first, cosines


def _counted(values: Tensor, counts: Sequence[float], power: int) -> Tensor:
    """Scale one value per tensor, so that entries on several ranks count once."""
    factors = [count**power for count in counts] * (len(values) // max(1, len(counts)))
    return lists.scaled(values, factors)
