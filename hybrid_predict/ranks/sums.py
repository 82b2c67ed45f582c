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
    return _whole(local, local[:0], counts)[0]


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
    norms, products = _whole(norms, products, counts)
    first, second = products.chunk(2)
    return norms, first, second


def angles(
    left: Sequence[Tensor], right: Sequence[Tensor], counts: Counts
) -> tuple[Tensor, Tensor]:
    """Return norms of the left tensors, and cosines of their angles with the right ones.

    Both have shape (K,) and at least 32 bits; a cosine is 0 if either tensor is zero.
    """
    lengths, products = _whole(lists.norms([*left, *right]), lists.dots(left, right), counts)
    first, second = lengths.chunk(2)
    cosines = (products / (first * second).clamp_min(_TINY)).nan_to_num(0.0, 0.0, 0.0)
    return first, cosines


def _whole(norms: Tensor, products: Tensor, counts: Counts) -> tuple[Tensor, Tensor]:
    if counts is None:
        return norms, products
    scaled = []
    for values, power in ((norms, 1), (products, 2)):
        factors = [count**power for count in counts] * (len(values) // max(1, len(counts)))
        scaled.append(lists.scaled(values, factors))
    return processes.combine(*scaled)
