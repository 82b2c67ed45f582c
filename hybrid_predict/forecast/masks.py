"""Which gradients and which entries corrections and forecasts may use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.tensors import upcast


def usable_gradients(
    gradients: list[Tensor], average: Sequence[Tensor], norms: Tensor, good: Tensor | bool
) -> tuple[list[Tensor], Tensor | None]:
    """Replace gradients by their average where they are not finite, or the update will not happen.

    Args:
        gradients: K gradients.
        average: Their averages.
        norms: Norms of the gradients, shape (K,).
        good: Whether the update will happen.

    Returns:
        The gradients, and a bool per gradient that tells whether it was usable, shape (K,). The
        latter is None if all are known to be usable without waiting for a device.
    """
    usable = norms.isfinite() & good
    if usable.device.type == "cpu" and bool(usable.all()):
        return gradients, None
    triples = zip(gradients, average, usable, strict=True)
    return [torch.where(ok, g, upcast(m).to(g.dtype)) for g, m, ok in triples], usable


def optimizer_only(
    averages: Sequence[Tensor], members: Sequence[int], usable: Tensor | None, good: Tensor | bool
) -> list[Tensor | None]:
    """Find the entries of the tensors that only the optimizer may move.

    These are entries that never had a gradient, and all entries of tensors whose gradient is not
    usable or whose update does not happen.

    Args:
        averages: Averaged gradients.
        members: Positions of the tensors that have a gradient in this step.
        usable: Which of these gradients are usable, or None if all are.
        good: Whether the update happens.

    Returns:
        One bool mask per tensor, or None where the mask is known to be empty without waiting for a
        device.
    """
    found = [_zeros(average) for average in averages]
    reasons = {} if usable is None else dict(zip(members, ~usable, strict=True))
    for k, average in enumerate(averages):
        for reason in (reasons.get(k), ~good if isinstance(good, Tensor) else None):
            if reason is not None:
                known = found[k]
                found[k] = (average == 0) | reason if known is None else known | reason
    return found


def _zeros(average: Tensor) -> Tensor | None:
    """Mask of exact zeros; None if there are none, which is only tested on the CPU."""
    if average.device.type == "cpu" and int(torch.count_nonzero(average)) == average.numel():
        return None
    return average == 0
