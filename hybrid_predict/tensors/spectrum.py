"""Orthogonal factors and inverse roots of stacks of matrices, in torch, by products alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hybrid_predict.tensors.polynomials import (
    CUSHION,
    POLYNOMIALS,
    ROOT_POLYNOMIALS,
    split_rows,
)

_TINY = torch.finfo(torch.float32).tiny

_SQUARED = (1e-20, 1e20)
"""Range of lengths of a Gram matrix in which its squares and products fit in 32 bits."""


def lengths(stack: Tensor) -> Tensor:
    """Frobenius norm of each matrix, at least the smallest normal number, shape (K, 1, 1)."""
    return torch.linalg.vector_norm(stack, dim=(-2, -1), keepdim=True).clamp_min(_TINY)


def orthogonal(stack: Tensor, iterations: int, block: int | None = None) -> Tensor:
    """Return the orthogonal factor of every matrix of a stack of 32 or 64 bits."""
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    matrices, short, long = x.shape
    count, size = split_rows(short, block)
    if count > 1:
        x = F.pad(x, (0, 0, 0, count * size - short)).reshape(-1, size, long)
    x = normalised_rows(x) if size == 1 else _polar(x, iterations)
    if count > 1:
        x = x.reshape(matrices, -1, long)[:, :short]
    return (x.mT if tall else x).to(stack.dtype)


def normalised_rows(x: Tensor) -> Tensor:
    """Scale every row to length one."""
    x = x / x.abs().amax(-1, keepdim=True).clamp_min(_TINY)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_TINY)


def uses_gram(on_cuda: bool, short: int, long: int) -> bool:
    """Whether to evaluate the polynomials on the Gram matrix and multiply it with X at the end.

    For k polynomials, m rows and n columns, this takes (8 k - 6) m³ + 4 m² n operations; one
    polynomial of X after the other takes 2 k m³ + 4 k m² n. The eigenvalues of the Gram matrix are
    squares, which need more than the 16 bits that make accelerators fast.
    """
    return not on_cuda and 2 * long > 3 * short


def _polar(x: Tensor, iterations: int) -> Tensor:
    """Return the orthogonal factor of every wide matrix of a stack."""
    x, gram, norms = _with_gram(x)
    inverse = 1.0 / (CUSHION * norms.sqrt())
    gram = gram * inverse.square()
    polynomials = POLYNOMIALS[iterations]
    if uses_gram(x.is_cuda, *x.shape[-2:]):
        return torch.bmm(polynomial(gram, polynomials).mul_(inverse), x)
    x = x * inverse
    for k, (a, b, c) in enumerate(polynomials):
        gram = torch.bmm(x, x.mT) if k else gram
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _with_gram(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a stack, its Gram matrices and their norms, scaled if squares would leave 32 bits.

    Only on the CPU, where reading does not wait, it is tested whether they would.
    """
    if x.device.type == "cpu":
        gram = torch.bmm(x, x.mT)
        norms = lengths(gram)
        least, most = (float(end) for end in torch.aminmax(norms))
        if _SQUARED[0] < least and most < _SQUARED[1]:
            return x, gram, norms
    x = x / x.abs().amax((-2, -1), keepdim=True).clamp_min(_TINY)
    x = x.bfloat16() if x.is_cuda and x.dtype == torch.float32 else x
    gram = torch.bmm(x, x.mT)
    return x, gram, lengths(gram)


def polynomial(gram: Tensor, polynomials: Sequence[tuple[float, float, float]]) -> Tensor:
    """Return the polynomial of X Xᵀ that X is multiplied with."""
    factor = None
    for k, (a, b, c) in enumerate(polynomials):
        step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        step.diagonal(dim1=-2, dim2=-1).add_(a)
        factor = step if factor is None else torch.bmm(step, factor)
        if k + 1 < len(polynomials):
            gram = torch.bmm(torch.bmm(step, gram), step)
    assert factor is not None
    return factor


def inverse_fourth_roots(stack: Tensor, floor: float = 0.0) -> Tensor:
    """Return the inverse fourth root of every covariance of a stack, but for its scale.

    The orthogonal factor of a root B of C is p(C) B, so p(C) is near the inverse of B. The same
    polynomials applied to that once more give the root of it.

    Args:
        stack: Covariances, shape (K, m, m), of 32 or 64 bits.
        floor: Added to the diagonals, in Frobenius norms.
    """
    first, second = (POLYNOMIALS[count] for count in ROOT_POLYNOMIALS)
    if floor:
        stack = stack / lengths(stack)
        stack.diagonal(dim1=-2, dim2=-1).add_(floor)
    roots = shrunk(polynomial(shrunk(stack), first))
    return torch.bmm(roots, polynomial(roots, second))


def shrunk(stack: Tensor) -> Tensor:
    """Scale symmetric matrices so that the largest eigenvalue is not far below one."""
    stack = stack / lengths(stack)
    return stack / (CUSHION * lengths(torch.bmm(stack, stack)).sqrt())
