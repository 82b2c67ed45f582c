"""Masks of the gradients and entries that corrections and forecasts may use.

A mask is None if it is known to be empty without waiting for a device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hybrid_predict.optimizers.wrapper import Options
from hybrid_predict.ranks.shards import dense_gradients
from hybrid_predict.tensors.lists import upcast
from hybrid_predict.updates.base import COASTING, ROUNDING


def usable_gradients(
    gradients: list[Tensor], average: Sequence[Tensor], norms: Tensor
) -> tuple[list[Tensor], Tensor | None]:
    """Replace gradients by their average where they are not finite.

    With them comes whether each was usable, bools of shape (K,); None if all are.
    """
    if norms.device.type == "cpu" and all(map(math.isfinite, norms.tolist())):
        return gradients, None
    usable = norms.isfinite()
    triples = zip(gradients, average, usable, strict=True)
    return [torch.where(ok, g, upcast(m).to(g.dtype)) for g, m, ok in triples], usable


def optimizer_only(
    averages: Sequence[Tensor],
    members: Sequence[int],
    usable: Tensor | None,
    still: Mapping[int, Tensor | None],
) -> list[Tensor | None]:
    """Return a mask per tensor of the entries that only the optimizer may move.

    These are entries that never had a gradient, and all entries of tensors whose gradient is not
    usable. An average is not searched for zeros if the tensor's gradient has none (``still``).
    ``members`` are the tensors that have a gradient now.
    """
    masks: list[Tensor | None] = [None] * len(averages)
    searched = [k for k in range(len(averages)) if k not in still or still[k] is not None]
    for k, mask in zip(searched, zeros([averages[k] for k in searched]), strict=True):
        masks[k] = mask
    for k, lost in zip(members, [] if usable is None else ~usable, strict=usable is not None):
        known = masks[k]
        masks[k] = (_is_zero(averages[k]) if known is None else known) | lost
    return masks


def zeros(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return masks of exact zeros; whether there are any is only tested on the CPU."""
    if {x.device.type for x in tensors} != {"cpu"}:
        return [_is_zero(x) for x in tensors]
    counts = torch.stack(list(map(torch.count_nonzero, tensors))).tolist()  # read once
    columns = zip(tensors, counts, map(torch.numel, tensors), strict=True)
    return [None if count == size else _is_zero(x) for x, count, size in columns]


def _is_zero(tensor: Tensor) -> Tensor:
    return ~tensor.bool()  # in a third of the time of a comparison on the CPU


def _unless_empty(mask: Tensor) -> Tensor | None:
    if mask.device.type != "cpu":
        return mask
    # Bytes have a fast maximum; ``any`` takes longer than the comparison before it.
    return mask if mask.numel() and int(mask.contiguous().view(torch.uint8).amax()) else None


def without_gradient(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], options: Sequence[Options]
) -> list[Tensor | None]:
    """Return masks of exact zeros in parameters' gradients, without coupled weight decay."""
    if any([own.coupled for own in options]):
        pairs = zip(dense_gradients(parameters), gradients, strict=True)
        gradients = [own.reshape(g.shape) for own, g in pairs]
    return zeros(gradients)


def unmoved(
    value: Tensor, before: Tensor, own: Options, still: Tensor, only: Tensor | None
) -> Tensor | None:
    """Return the mask of the entries that are frozen now, such as rows that a hook has frozen.

    Their gradient is exactly zero, and the update has moved them, besides weight decay, less than
    `COASTING` of the root mean square over the entries with a gradient; without any of these, it
    has not moved them at all, as the layer may only be left out of this batch. Infinite weights
    count as moved. If only the optimizer may move all of them anyway (``only``), none is searched.
    """
    if only is not None and _unless_empty(still & ~only) is None:
        return None
    if own.shrink or own.coupled:
        rest = upcast(before) * (1.0 - own.shrink - abs(own.rate) * own.coupled)
        rest = rest.to(value.dtype)
        off = (value - rest).abs_().sub_(rest.abs().mul_(ROUNDING)).relu_()
    else:
        off = value - before
    off = upcast(off).square_()
    moved = ~still
    mask = still & (off <= COASTING**2 * (off * moved).sum() / moved.sum().clamp(min=1))
    return _unless_empty(mask)


def either(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """Return the union of two masks."""
    if left is None or right is None:
        return right if left is None else left
    return left | right
