"""The torch backend: in-place kernels, one fused call per list where torch has one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybrid_predict.tensors.base import ROW_MEMORY, AbstractBackend, as_matrix
from hybrid_predict.tensors.polynomials import ROOT_FLOOR
from hybrid_predict.tensors.spectrum import (
    inverse_fourth_roots,
    lengths,
    normalised_rows,
    orthogonal,
    uses_gram,
)

_TINY = torch.finfo(torch.float32).tiny

_HALF = (torch.float16, torch.bfloat16)

_TOGETHER = 2**20
"""Entries of the covariances whose roots are computed together, with six copies in between."""


def is_half(tensor: Tensor) -> bool:
    """Whether a tensor has a 16-bit type."""
    return tensor.dtype in _HALF


def upcast(tensor: Tensor) -> Tensor:
    """Convert a 16-bit tensor to 32 bits; other tensors are returned as is."""
    return tensor.float() if is_half(tensor) else tensor


def widest(tensors: Sequence[Tensor]) -> torch.dtype:
    """64 bits if one of the tensors has them, else 32."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


class TorchBackend(AbstractBackend[Tensor]):
    """In-place kernels on torch tensors; the host never waits for the device."""

    name = "torch"

    def zeros(self, like: Sequence[Tensor], history: str | None = None) -> list[Tensor]:
        """Return zeros of the same shapes."""
        if (history or self.history) == "bfloat16":
            return [torch.zeros_like(x, dtype=torch.bfloat16) for x in like]
        return [torch.zeros_like(x, dtype=torch.float32 if is_half(x) else x.dtype) for x in like]

    def constants(self, values: Sequence[float], like: Sequence[Tensor]) -> Tensor:
        """Return a tensor of these numbers on the device of the first array."""
        device = like[0].device if like else None
        if len(set(values)) == 1:
            return torch.full((len(values),), values[0], dtype=widest(like), device=device)
        return torch.tensor(list(values), dtype=widest(like), device=device)

    def zero_rows(self, like: Sequence[Tensor]) -> list[Tensor]:
        """Return zero second moments, one per row."""
        shaped = zip(like, self.matrices(like), strict=True)
        return [torch.zeros(m, dtype=widest([x]), device=x.device) for x, (m, _) in shaped]

    def copy(self, target: Sequence[Tensor], source: Sequence[Tensor]) -> list[Tensor]:
        """Copy ``source`` to ``target``, element by element."""
        if target:
            torch._foreach_copy_(list(target), list(source))
        return list(target)

    def add_scaled(
        self, target: Sequence[Tensor], other: Sequence[Tensor], factors: Sequence[Any]
    ) -> list[Tensor]:
        """Compute target[k] := target[k] + factors[k] * other[k]."""
        if not target:
            return []
        # In half precision the product would be rounded before the addition.
        fused = not is_half(target[0]) and not any(isinstance(f, Tensor) for f in factors)
        if fused and all(f == factors[0] for f in factors):
            torch._foreach_add_(list(target), list(other), alpha=factors[0])
            return list(target)
        for x, y, factor in zip(target, other, factors, strict=True):
            if isinstance(factor, Tensor):
                x.add_(upcast(y) * factor)
            else:
                x.add_(y, alpha=factor)
        return list(target)

    def average(
        self, mean: Sequence[Tensor], value: Sequence[Tensor], decay: float
    ) -> list[Tensor]:
        """Update a running average; see the base class."""
        if mean and all(m.dtype == v.dtype for m, v in zip(mean, value, strict=True)):
            torch._foreach_lerp_(list(mean), list(value), 1.0 - decay)
        else:
            for m, v in zip(mean, value, strict=True):
                m.copy_(lerp(m, v, 1.0 - decay, None if is_half(m) else m))
        return list(mean)

    def norms(self, arrays: Sequence[Tensor]) -> Tensor:
        """Return the Frobenius norm of each tensor, shape (K,), at least 32-bit."""
        if not arrays:
            return torch.zeros(0)
        # The norm may exceed the range of 16-bit floats, which ends at 65504.
        return torch.stack(torch._foreach_norm(list(arrays), 2, widest(arrays)))

    def distances(
        self, left: Sequence[Tensor], right: Sequence[Tensor], factors: Sequence[Any]
    ) -> Tensor:
        """Return the norm of each left[k] - factors[k] * right[k], shape (K,), at least 32-bit."""
        if not left:
            return torch.zeros(0)
        # One temporary at a time: all of them together would be as large as the weights.
        rows, kind = zip(left, right, factors, strict=True), widest(left)
        norms = [torch.linalg.vector_norm(minus(x, y, factor)).to(kind) for x, y, factor in rows]
        return torch.stack(norms)

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Return the inner product of each pair of tensors, shape (K,), at least 32-bit."""
        if not left:
            return torch.zeros(0)
        pairs, kind = zip(left, right, strict=True), widest([*left, *right])
        return torch.stack(
            [torch.dot(x.reshape(-1).to(kind), y.reshape(-1).to(kind)) for x, y in pairs]
        )

    def angles(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return norms of the left tensors, and cosines with the right ones, shape (K,)."""
        norms = self.norms([*left, *right])
        return norms[: len(left)], cosines(norms, self.dots(left, right))

    def flatten_spectrum(
        self,
        mean: Sequence[Tensor],
        value: Sequence[Tensor],
        decays: Sequence[float] | Tensor,
        iterations: int,
        rows: Sequence[Tensor] | None = None,
        block: int | None = None,
        roots: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> tuple[list[Tensor], Sequence[Tensor] | None]:
        """Return new arrays -P / |P|, from the orthogonal factor; see the base class.

        Matrices of one shape are stacked and treated together.
        """
        shapes, shares = [as_matrix(x.shape) for x in mean], complements(decays)
        groups: dict[Any, list[int]] = defaultdict(list)
        for k, x in enumerate(mean):
            groups[(*shapes[k], x.dim() > 1, widest([x]), x.device)].append(k)
        flat = list(mean)
        for (height, width, flattens, dtype, device), members in groups.items():
            stack = torch.empty(len(members), height, width, dtype=dtype, device=device)
            for x, k in zip(stack, members, strict=True):
                lerp(mean[k].reshape(x.shape), value[k].reshape(x.shape), shares[k], x)
            if flattens:
                if roots is not None:
                    _whiten(stack, roots, members)
                stack = orthogonal(stack, iterations, block)
            moments = [rows[k] for k in members] if flattens and rows is not None else None
            stack = _negated_unit(stack, moments)
            for x, k in zip(stack, members, strict=True):
                flat[k] = x.view(mean[k].shape).to(torch.promote_types(mean[k].dtype, x.dtype))
        return flat, rows

    def diagonals(
        self, like: Sequence[Tensor], longest: int, value: float
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return flat diagonal matrices for both sides; see the base class."""
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        for x, sides in zip(like, self.matrices(like), strict=True):
            for side, matrices in zip(sides, found, strict=True):
                size = side if x.dim() > 1 and side <= longest else 0
                matrices += self.zeros([x.new_empty(size * size)])
                matrices[-1][:: size + 1] = value
        return found

    def covariances(
        self,
        left: Sequence[Tensor],
        right: Sequence[Tensor],
        value: Sequence[Tensor],
        decay: float,
        due: Sequence[Any],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Update running covariances in place; see the base class."""
        for own, other, x, now in zip(left, right, value, due, strict=True):
            if not now or not own.numel() + other.numel():
                continue
            x = normalised_rows(upcast(x).reshape(-1)).reshape(as_matrix(x.shape))
            for covariance, rows in ((own, x), (other, x.mT)):
                if covariance.numel():
                    square = (rows @ rows.mT).reshape(-1).to(covariance.device)
                    self.average([covariance], [square], decay)
        return list(left), list(right)

    def inverse_roots(
        self, covariances: Sequence[Tensor], roots: Sequence[Tensor], due: Sequence[Any]
    ) -> list[Tensor]:
        """Compute roots in place, several small ones of a size together; see the base class."""
        groups: dict[Any, list[int]] = defaultdict(list)
        for k, x in enumerate(covariances):
            if due[k] and x.numel():
                groups[x.numel(), x.dtype, x.device].append(k)
        for (size, dtype, _), members in groups.items():
            side, together = math.isqrt(size), max(1, _TOGETHER // size)
            floor = ROOT_FLOOR if dtype in _HALF else 0.0
            for start in range(0, len(members), together):
                chosen = members[start : start + together]
                stack = torch.stack([upcast(covariances[k]).view(side, side) for k in chosen])
                for k, root in zip(chosen, inverse_fourth_roots(stack, floor), strict=True):
                    roots[k].copy_(root.reshape(-1))
        return list(roots)

    def counters(self, like: Sequence[Tensor]) -> list[Tensor]:
        """Return a 0-dim integer 0 on the host for each tensor."""
        return [torch.zeros((), dtype=torch.int64, device="cpu") for _ in like]

    def _operations(self, like: Tensor, short: int, long: int, iterations: int) -> int:
        """Operations of one block, in the cheaper one of two ways."""
        if uses_gram(like.is_cuda, short, long):
            return 4 * short**2 * long + (8 * iterations - 6) * short**3
        return super()._operations(like, short, long, iterations)


def minus(left: Tensor, right: Tensor, factor: float | Tensor) -> Tensor:
    """Return left - factor * right in at least 32 bits, as a new tensor."""
    if isinstance(factor, Tensor):
        return upcast(left) - factor * upcast(right)
    return torch.sub(upcast(left), upcast(right), alpha=factor)


def per_rate(
    before: list[Tensor], after: Sequence[Tensor], rates: Sequence[float | Tensor]
) -> list[Tensor]:
    """Return displacements (after - before) / rate, written to ``before``; 0 for a rate of 0."""
    torch._foreach_sub_(before, list(after))
    numbers = [rate for rate in rates if not isinstance(rate, Tensor)]
    if len(numbers) == len(before):
        torch._foreach_mul_(before, [-1.0 / rate if abs(rate) > 0 else 0.0 for rate in numbers])
        return before
    for x, rate in zip(before, rates, strict=True):
        known = rate if isinstance(rate, Tensor) else torch.tensor(rate)
        x.div_(torch.where(known.abs() > 0, -known, -torch.inf))
    return before


def complements(decays: Sequence[float] | Tensor) -> Sequence[float] | Sequence[Tensor]:
    """Return 1 - decay for each array, in one operation."""
    if isinstance(decays, Tensor):
        return (1.0 - decays).unbind()
    return [1.0 - decay for decay in decays]


def lerp(mean: Tensor, value: Tensor, share: float | Tensor, out: Tensor | None = None) -> Tensor:
    """Return (1 - share) * mean + share * value in at least 32 bits, as a tensor."""
    if mean.dtype == value.dtype == (torch.float32 if out is None else out.dtype):
        return torch.lerp(mean, value, share, out=out)
    kept = torch.promote_types(mean.dtype, torch.float32)
    out = mean.to(kept, copy=True) if out is None else out.copy_(mean)
    share = share.to(out.dtype) if isinstance(share, Tensor) else share
    return out.lerp_(value.to(out.dtype), share)


def cosines(norms: Tensor, products: Tensor) -> Tensor:
    """Return K cosines, from the norms of all left and then all right arrays, and K products."""
    left, right = norms.view(2, -1)
    return (products / (left * right).clamp_min(_TINY)).nan_to_num(0.0, 0.0, 0.0)


def _whiten(
    stack: Tensor, roots: tuple[Sequence[Tensor], Sequence[Tensor]], members: Sequence[int]
) -> None:
    """Multiply K matrices of one shape with their roots from the left and from the right."""
    height, width = stack.shape[-2:]
    # One by one: a stack of the roots can be larger than the matrices.
    for x, k in zip(stack, members, strict=True):
        left, right = roots[0][k], roots[1][k]
        if left.numel():
            x.copy_(left.view(height, height).to(x) @ x)
        if right.numel():
            x.copy_(x @ right.view(width, width).to(x))


def _negated_unit(stack: Tensor, moments: Sequence[Tensor] | None) -> Tensor:
    """Negate K matrices and scale them to length one.

    If there are second moments of their rows, update these and divide the rows by their roots
    first.
    """
    if moments is None:
        return stack.mul_(-1.0 / lengths(stack)).contiguous()
    norms = torch.linalg.vector_norm(stack, dim=-1)
    squares = norms.square().div_(stack.shape[-1]).to(moments[0])
    torch._foreach_lerp_(list(moments), list(squares), 1.0 - ROW_MEMORY)
    roots = torch.stack(list(moments)).clamp_min(_TINY).sqrt().to(stack)
    sizes = torch.linalg.vector_norm(norms / roots, dim=-1, keepdim=True).clamp_min(_TINY)
    return stack.mul_((-1.0 / (roots * sizes).clamp_min(_TINY)).unsqueeze(-1)).contiguous()
