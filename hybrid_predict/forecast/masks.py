"""Which gradients and which entries of tensors corrections and forecasts may use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.tensors import upcast


def usable_gradients(
    gradients: list[Tensor], average: Sequence[Tensor], norms: Tensor, good: Tensor | bool
) -> tuple[list[Tensor], Tensor | None]:
    """Gradients that an average may see, itself where one is not finite or leads to no update.

    Returns:
        The gradients, and which of them were usable, shape (K,); None if all were, as far as can be
        told without waiting for a device.
    """
    usable = norms.isfinite() & good
    if usable.device.type == "cpu" and bool(usable.all()):
        return gradients, None
    triples = zip(gradients, average, usable, strict=True)
    return [torch.where(ok, g, upcast(m).to(g.dtype)) for g, m, ok in triples], usable


def optimizer_only(
    averages: Sequence[Tensor], members: Sequence[int], usable: Tensor | None, good: Tensor | bool
) -> list[Tensor | None]:
    """Which entries are the optimizer's alone: never a gradient, or none that can be used.

    Args:
        averages: Averaged gradients.
        members: Positions of those that a gradient has just reached.
        usable: Which of these gradients were usable; None if all were.
        good: Whether the update happens.

    Returns:
        One mask per tensor; None where it would be empty, as far as can be told without waiting for
        a device.
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
    """Where an average is exactly zero; None for nowhere, which only the CPU is asked."""
    if average.device.type == "cpu" and int(torch.count_nonzero(average)) == average.numel():
        return None
    return average == 0
