"""Arithmetic on lists of tensors, one per parameter; the host never waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

HALF = {torch.float16, torch.bfloat16}
"""Types of 16 bits."""

_TINY = torch.finfo(torch.float32).tiny


def upcast(tensor: Tensor) -> Tensor:
    """Convert a 16-bit tensor to 32 bits; other tensors are returned as is."""
    return tensor.float() if tensor.dtype in HALF else tensor


def cast(tensor: Tensor, kind: torch.dtype) -> Tensor:
    """Convert a tensor; it takes less time than ``Tensor.to`` if there is nothing to do."""
    return tensor if tensor.dtype == kind else tensor.to(kind)


def widest(tensors: Sequence[Tensor]) -> torch.dtype:
    """Return float64 if one of the tensors has it, else float32."""
    return torch.float64 if torch.float64 in [x.dtype for x in tensors] else torch.float32


def stored_as(history: str, like: Tensor) -> torch.dtype:
    """Return bfloat16 if histories are stored in it, else the type of a tensor in 32 or 64 bits."""
    return torch.bfloat16 if history == "bfloat16" else widest([like])


def zeros(like: Sequence[Tensor], history: str = "float32") -> list[Tensor]:
    """Return zeros of the same shapes, stored as ``history``."""
    return [torch.zeros_like(x, dtype=stored_as(history, x)) for x in like]


def clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors."""
    if hasattr(torch, "_foreach_clone"):  # not in earlier versions
        return list(torch._foreach_clone(list(tensors)))
    return [x.clone() for x in tensors]


def scaled(values: Tensor, factors: Sequence[float]) -> Tensor:
    """Multiply one value per tensor, shape (K,), by a number each.

    Numbers are not copied to a device, because this would wait for it.
    """
    if len(set(factors)) < 2:
        return values * factors[0] if factors and factors[0] != 1.0 else values
    if values.device.type == "cpu":
        return values * values.new_tensor(factors)
    return torch.stack(torch._foreach_mul(list(values), list(factors)))


def add_scaled(target: Sequence[Tensor], other: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Add factors[k] * other[k] to each target[k], in place."""
    # In half precision the product would be rounded before the addition.
    if len(set(factors)) == 1 and target[0].dtype not in HALF:
        torch._foreach_add_(list(target), list(other), alpha=factors[0])
        return
    for x, y, factor in zip(target, other, factors, strict=True):
        x.add_(y, alpha=factor)


def differences(
    left: Sequence[Tensor], right: Sequence[Tensor], factors: Sequence[float]
) -> list[Tensor]:
    """Return left[k] - factors[k] * right[k] in at least 32 bits, as new tensors."""
    if len(set(factors)) == 1 and not {x.dtype for x in left} & HALF:
        return list(torch._foreach_sub(list(left), list(right), alpha=factors[0]))
    triples = zip(map(upcast, left), map(upcast, right), factors, strict=True)
    return [torch.sub(x, y, alpha=factor) for x, y, factor in triples]


def average(means: Sequence[Tensor], values: Sequence[Tensor], decay: float) -> None:
    """Update running averages in place: mean := decay * mean + (1 - decay) * value.

    They are computed in at least 32 bits and rounded to the nearest number of the mean's type.
    """
    if means and [m.dtype for m in means] == [v.dtype for v in values]:
        torch._foreach_lerp_(list(means), list(values), 1.0 - decay)
        return
    for mean, value in zip(means, values, strict=True):
        mean.copy_(lerp(mean, value, 1.0 - decay))


def lerp(mean: Tensor, value: Tensor, share: float | Tensor) -> Tensor:
    """Return (1 - share) * mean + share * value in at least 32 bits, as a new tensor."""
    mean = upcast(mean)
    share = share.to(mean.dtype) if isinstance(share, Tensor) else share
    return torch.lerp(mean, value.to(mean.dtype), share)


def lerps(
    means: Sequence[Tensor], values: Sequence[Tensor], shares: Sequence[Tensor]
) -> list[Tensor]:
    """Return `lerp` of each pair, by a 0-dim share each."""
    kinds = {x.dtype for x in (*means, *values, *shares)}
    if len(kinds) == 1 and not kinds & HALF:
        return list(torch._foreach_lerp(list(means), list(values), list(shares)))
    return [lerp(*each) for each in zip(means, values, shares, strict=True)]


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Frobenius norm of each tensor, shape (K,), at least 32-bit."""
    if not tensors:
        return torch.zeros(0)
    # The norm may exceed the range of 16-bit floats, which ends at 65504.
    return torch.stack(torch._foreach_norm(list(tensors), 2, widest(tensors)))


def dots(left: Sequence[Tensor], right: Sequence[Tensor], *, overwrite: bool = False) -> Tensor:
    """Return the inner product of each pair of tensors, shape (K,), at least 32-bit.

    With ``overwrite`` the left tensors may be overwritten with products of entries.
    """
    if not left:
        return torch.zeros(0)
    if {x.dtype for x in (*left, *right)} != {torch.float32}:
        kind = widest([*left, *right])
        left = [x.to(kind) for x in left]
        right = [y.to(kind) for y in right]
    products: Sequence[Tensor] = left
    if overwrite:
        torch._foreach_mul_(list(left), list(right))
    else:
        products = torch._foreach_mul(list(left), list(right))
    return torch.stack(list(map(torch.sum, products)))


def cosines(lengths: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """Return lengths of the first K tensors, and cosines of their angles with K others.

    ``lengths`` has shape (2 K,). A cosine is 0 if either tensor is zero.
    """
    first, second = lengths.chunk(2)
    return first, (products / (first * second).clamp_min(_TINY)).nan_to_num(0.0, 0.0, 0.0)


def clear(tensors: Sequence[Tensor], masks: Sequence[Tensor | None]) -> None:
    """Set the masked entries of tensors to zero."""
    for x, mask in zip(tensors, masks, strict=True):
        if mask is not None:
            x.masked_fill_(mask, 0.0)
