"""Kernels on torch tensors: in place, one fused call per list where torch has one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybrid_predict.tensors.base import NEWTON_SCHULZ, ROW_MEMORY, AbstractBackend, as_matrix

_STABLE = 5
"""Newton-Schulz steps that a Gram matrix in 32 bits stands: its null space is noise, which grows
almost twelvefold in each."""

_TINY = torch.finfo(torch.float32).tiny

_HALF = (torch.float16, torch.bfloat16)


def is_half(tensor: Tensor) -> bool:
    """Whether a tensor has 16-bit entries."""
    return tensor.dtype in _HALF


def wide(tensor: Tensor) -> Tensor:
    """The tensor itself, or its 16-bit entries in 32 bits."""
    return tensor.float() if is_half(tensor) else tensor


class TorchBackend(AbstractBackend[Tensor]):
    """In-place kernels; nothing here waits for the device."""

    name = "torch"

    def zeros(self, like: Sequence[Tensor], history: str | None = None) -> list[Tensor]:
        """Zeros of the same shapes."""
        if (history or self.history) == "bfloat16":
            return [torch.zeros_like(x, dtype=torch.bfloat16) for x in like]
        return [torch.zeros_like(x, dtype=torch.float32 if is_half(x) else x.dtype) for x in like]

    def constants(self, values: Sequence[float], like: Sequence[Tensor]) -> Tensor:
        """A tensor of these numbers on the device of the first array."""
        device = like[0].device if like else None
        if len(set(values)) == 1:
            return torch.full((len(values),), values[0], dtype=torch.float32, device=device)
        return torch.tensor(list(values), dtype=torch.float32, device=device)

    def zero_rows(self, like: Sequence[Tensor]) -> list[Tensor]:
        """An empty second moment per row."""
        shaped = zip(like, self.matrices(like), strict=True)
        return [torch.zeros(m, dtype=torch.float32, device=x.device) for x, (m, _) in shaped]

    def copy(self, target: Sequence[Tensor], source: Sequence[Tensor]) -> list[Tensor]:
        """Target := source, element by element."""
        if target:
            torch._foreach_copy_(list(target), list(source))
        return list(target)

    def difference(self, target: Sequence[Tensor], other: Sequence[Tensor]) -> list[Tensor]:
        """Target := other - target, the displacement when target holds the weights before."""
        if not target or target[0].device.type == "cpu":
            for x, y in zip(target, other, strict=True):
                torch.sub(y, x, out=x)
        else:
            torch._foreach_sub_(list(target), list(other))
            torch._foreach_neg_(list(target))
        return list(target)

    def add_scaled(
        self, target: Sequence[Tensor], other: Sequence[Tensor], factors: Sequence[float]
    ) -> list[Tensor]:
        """Target[k] := target[k] + factors[k] * other[k]."""
        if not target or target[0].device.type == "cpu" or target[0].dtype != other[0].dtype:
            # The CPU has no fused list kernels, so the loop saves the temporary for free; a product
            # of half precision would be rounded before it is added.
            for x, y, factor in zip(target, other, factors, strict=True):
                x.add_(y, alpha=factor)
        else:
            torch._foreach_add_(list(target), torch._foreach_mul(list(other), list(factors)))
        return list(target)

    def average(
        self, mean: Sequence[Tensor], value: Sequence[Tensor], decay: float
    ) -> list[Tensor]:
        """Mean := decay * mean + (1 - decay) * value; see the base."""
        if mean and all(m.dtype == v.dtype for m, v in zip(mean, value, strict=True)):
            torch._foreach_lerp_(list(mean), list(value), 1.0 - decay)
        else:
            for m, v in zip(mean, value, strict=True):
                m.copy_(blended(m, v, 1.0 - decay, None if is_half(m) else m))
        return list(mean)

    def norms(self, arrays: Sequence[Tensor]) -> Tensor:
        """Frobenius norm of each tensor, shape (K,), at least 32-bit."""
        if not arrays:
            return torch.zeros(0)
        # Half precision must not bound the result: 16-bit floats end at 65504.
        dtype = None if any(x.dtype == torch.float64 for x in arrays) else torch.float32
        return torch.stack([n.float() for n in torch._foreach_norm(list(arrays), 2, dtype)])

    def distances(
        self, left: Sequence[Tensor], right: Sequence[Tensor], factors: Sequence[Any]
    ) -> Tensor:
        """Frobenius norm of each left[k] - factors[k] * right[k], shape (K,), at least 32-bit."""
        if not left:
            return torch.zeros(0)
        triples = zip(left, right, factors, strict=True)
        # One temporary at a time: a list of them would be as large as the weights.
        norms = [torch.linalg.vector_norm(minus(x, y, f)).float() for x, y, f in triples]
        return torch.stack(norms)

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Inner product of each pair of tensors, shape (K,), at least 32-bit."""
        if not left:
            return torch.zeros(0)
        pairs = zip(left, right, strict=True)
        return torch.stack(
            [torch.dot(x.reshape(-1).float(), y.reshape(-1).float()) for x, y in pairs]
        )

    def cosines(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Cosine of the angle of each pair of tensors, shape (K,)."""
        return cosines(self.norms([*left, *right]), self.dots(left, right))

    def flatten_spectrum(
        self,
        target: Sequence[Tensor],
        mean: Sequence[Tensor],
        value: Sequence[Tensor],
        decays: Sequence[float] | Tensor,
        lengths: Tensor,
        iterations: int,
        rows: Sequence[Tensor] | None = None,
    ) -> tuple[list[Tensor], Sequence[Tensor] | None]:
        """Target[k] := lengths[k] P / |P|, from the orthogonal factor; see the base."""
        shapes, shares = [as_matrix(x.shape) for x in mean], shares_of(decays)
        groups: dict[tuple[int, int, bool, torch.device], list[int]] = defaultdict(list)
        for k, x in enumerate(mean):
            groups[(*shapes[k], x.dim() > 1, x.device)].append(k)
        for (height, width, flattens, device), members in groups.items():
            stack = torch.empty(len(members), height, width, dtype=torch.float32, device=device)
            for x, k in zip(stack, members, strict=True):
                blended(mean[k].reshape(x.shape), value[k].reshape(x.shape), shares[k], x)
            if flattens:
                stack = _orthogonal(stack, iterations)
                if rows is not None:
                    _level(stack, [rows[k] for k in members])
            norms = _lengths(stack).flatten()
            for x, k, norm in zip(stack, members, norms, strict=True):
                torch.mul(x.reshape(target[k].shape), lengths[k] / norm, out=target[k])
        return list(target), rows


def minus(left: Tensor, right: Tensor, factor: float | Tensor) -> Tensor:
    """The difference left - factor * right in at least 32 bits, as a new tensor."""
    if isinstance(factor, Tensor):
        return wide(left) - factor * wide(right)
    return torch.sub(wide(left), wide(right), alpha=factor)


def shares_of(decays: Sequence[float] | Tensor) -> Sequence[float] | Sequence[Tensor]:
    """1 - decay of each array, in one operation."""
    if isinstance(decays, Tensor):
        return (1.0 - decays).unbind()
    return [1.0 - decay for decay in decays]


def blended(
    mean: Tensor, value: Tensor, share: float | Tensor, out: Tensor | None = None
) -> Tensor:
    """(1 - share) * mean + share * value in at least 32 bits, for a number or 0-dim tensor."""
    if mean.dtype == value.dtype == (torch.float32 if out is None else out.dtype):
        return torch.lerp(mean, value, share, out=out)
    kept = torch.promote_types(mean.dtype, torch.float32)
    out = mean.to(kept, copy=True) if out is None else out.copy_(mean)
    share = share.to(out.dtype) if isinstance(share, Tensor) else share
    return out.lerp_(value.to(out.dtype), share)


def cosines(norms: Tensor, products: Tensor) -> Tensor:
    """Cosines of K angles, from the norms of all left and all right sides and from K products."""
    left, right = norms.view(2, -1)
    return (products / (left * right).clamp_min(_TINY)).nan_to_num(0.0, 0.0, 0.0)


def _lengths(stack: Tensor) -> Tensor:
    return torch.linalg.vector_norm(stack, dim=(-2, -1), keepdim=True).clamp_min(_TINY)


def _level(stack: Tensor, moments: Sequence[Tensor]) -> None:
    """Divide the rows of K matrices by the roots of their second moments, which move on."""
    squares = stack.square().mean(-1).to(moments[0].device)
    torch._foreach_lerp_(list(moments), list(squares), 1.0 - ROW_MEMORY)
    roots = torch.stack(list(moments)).clamp_min(_TINY).sqrt()
    stack.div_(roots.to(stack.device).unsqueeze(-1))


def _orthogonal(stack: Tensor, iterations: int) -> Tensor:
    """The orthogonal factor of every matrix of a 32-bit stack, which is overwritten."""
    # Powers of two change no digit, and keep squares of small entries from underflowing.
    _, exponent = torch.frexp(stack.abs().amax((-2, -1), keepdim=True))
    x = torch.ldexp(stack, -exponent)
    x = x.div_(_lengths(x))
    # Newton-Schulz tolerates half precision, which is what makes it cheap on accelerators.
    x = x.bfloat16() if x.is_cuda else x
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    short, long = x.shape[-2:]
    small = x.dtype == torch.float32 and 2 * long > 3 * short and iterations <= _STABLE
    x = _by_gram(x, iterations) if small else _step_by_step(x, iterations)
    return (x.mT if tall else x).float()


def _step_by_step(x: Tensor, iterations: int) -> Tensor:
    """A polynomial of X Xᵀ times X, one Newton-Schulz step after the other."""
    a, b, c = NEWTON_SCHULZ
    for _ in range(iterations):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _by_gram(x: Tensor, iterations: int) -> Tensor:
    """The same polynomial from the small side alone, multiplied with X at the end.

    For m rows and n columns this takes 8 k m³ + 4 m² n operations, where k steps one after the
    other take 2 k m³ + 4 k m² n; eigenvalues are squares, so half precision is not enough.
    """
    a, b, c = NEWTON_SCHULZ
    gram, factor = torch.bmm(x, x.mT), None
    for k in range(iterations):
        step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        step.diagonal(dim1=-2, dim2=-1).add_(a)
        factor = step if factor is None else torch.bmm(step, factor)
        if k + 1 < iterations:
            gram = torch.bmm(torch.bmm(step, gram), step)
    assert factor is not None
    return torch.bmm(factor, x)
