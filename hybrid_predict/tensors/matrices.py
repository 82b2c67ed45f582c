"""Orthogonal factors, scales of rows and columns, and inverse roots of stacks of matrices."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from hybrid_predict.tensors.lists import upcast
from hybrid_predict.tensors.polynomials import (
    CUSHION,
    FACTOR,
    MOMENT_DECAY,
    MOST_ENERGY,
    POLYNOMIALS,
    ROOT,
    ROOT_FLOOR,
    Halley,
)

_TINY = torch.finfo(torch.float32).tiny


@final
class Moments(NamedTuple):
    """What is known about each matrix M and its orthogonal factor O, updated in place."""

    energies: Sequence[Tensor]  # mean squares of the rows, then of the columns of M, over M's
    levels: Sequence[Tensor]  # mean squares of the rows of O
    roots: Sequence[Tensor]  # covariance of the shorter side and its root, see `pack`, or empty


def flatten(matrices: list[Tensor], moments: Moments) -> list[Tensor]:
    r"""Return :math:`-P / \|P\|` for each matrix M, from an orthogonal factor O; zero for zero.

    .. math:: s_i \leftarrow \rho s_i + (1 - \rho) \, \langle M_{ij}^2 \rangle_j /
        \langle M_{ij}^2 \rangle, \qquad
        a_i = \min \bigl( 4, \max (\tfrac14, s_i / \bar s) \bigr)^{-1/4}, \qquad
        O \approx U V^\top \text{ of } A M B, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        P_{ij} = a_i \, O_{ij} \, b_j / \sqrt{r_i}

    A is diagonal with the entries :math:`a_i` from the rows of M, and B likewise with :math:`b_j`
    from its columns. Where the shorter side has a root, that is A or B, and O is not multiplied
    with it.

    Tensors of more than two dimensions are read as matrices of shape (first, rest). Singular values
    that are not far below the largest become about one (0.6 to 1.3), not exactly one. Tensors of
    one shape are stacked and treated together.

    Args:
        matrices: K tensors of at least 32 bits; the list is overwritten with the results.
        moments: s of rows and columns, shape (rows + columns,), and r, shape (rows,), in the type
            of the matrices; and roots.
    """
    for members in _alike(matrices, moments.roots):
        shape = matrices[members[0]].shape
        stack = torch.stack([matrices[k] for k in members]).flatten(2)
        height, width = stack.shape[-2:]
        rows, columns = _scales(stack, [moments.energies[k] for k in members])
        roots = [moments.roots[k] for k in members]
        rooted = roots[0].numel() > 0  # then the root is in place of scales of the shorter side
        scales = []
        if not (rooted and height <= width):
            scales.append(rows[..., None])
        if not (rooted and height > width):
            scales.append(columns[:, None])
        for scale in scales:
            stack.mul_(scale)
        stack = orthogonal(stack, torch.stack(roots))
        _level(stack, [moments.levels[k] for k in members])
        for scale in scales:
            stack.mul_(scale)
        stack.div_(lengths(stack))
        found = stack.contiguous().view(-1, *shape).unbind()
        for k, x in zip(members, found, strict=True):
            matrices[k] = x
    return matrices


def _alike(matrices: Sequence[Tensor], packed: Sequence[Tensor]) -> Collection[list[int]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for k, (x, root) in enumerate(zip(matrices, packed, strict=True)):
        groups[x.shape, root.shape, x.dtype, x.device].append(k)
    return groups.values()


def _scales(stack: Tensor, energies: list[Tensor]) -> Sequence[Tensor]:
    # The matrices are scaled to a largest entry of one, so that their squares fit in 32 bits.
    # Norms of columns and largest norms take ten times as long on the CPU as means and maxima.
    stack.div_(stack.abs().amax((-2, -1), keepdim=True).clamp_min_(_TINY))
    squares = stack.square()
    ratios = torch.cat([squares.mean(-1), squares.mean(-2)], -1)
    ratios.div_(ratios.mean(-1, keepdim=True).clamp_min_(_TINY))
    torch._foreach_lerp_(energies, ratios.unbind(), 1.0 - MOMENT_DECAY)
    known = torch.stack(energies)
    known.div_(known.mean(-1, keepdim=True).clamp_min_(_TINY))  # both sides have this mean
    known.clamp_(1.0 / MOST_ENERGY, MOST_ENERGY).pow_(-0.25)
    return known.split_with_sizes(stack.shape[-2:], -1)


def _level(stack: Tensor, moments: list[Tensor]) -> None:
    squares = stack.square().mean(-1)
    torch._foreach_lerp_(moments, squares.unbind(), 1.0 - MOMENT_DECAY)
    roots = torch.stack(moments).clamp_min_(_TINY).rsqrt_().neg_()
    stack.mul_(roots[..., None])


def lengths(stack: Tensor) -> Tensor:
    """Return the Frobenius norm of each matrix, at least the smallest normal number."""
    return torch.linalg.vector_norm(stack, dim=(-2, -1), keepdim=True).clamp_min(_TINY)


def orthogonal(stack: Tensor, packed: Tensor) -> Tensor:
    """Return the orthogonal factor of every matrix of a stack of 32 or 64 bits.

    The largest entries are about one, so that Gram matrices fit in 32 bits. With roots, see
    :func:`pack`, it is that of the matrices after multiplying their shorter side with these.
    """
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    rooted = packed.numel() > 0
    if rooted:
        x = torch.bmm(roots_of(packed).to(x), x)
    x = x.bfloat16() if x.is_cuda and x.dtype == torch.float32 else x
    gram = torch.bmm(x, x.mT)
    inverse = lengths(gram).rsqrt_().mul_(1.0 / CUSHION)
    gram.mul_(inverse.square())
    if stack.is_cpu:  # an inverse needs more than the 16 bits that make accelerators fast
        x = torch.bmm(_inverse_root(gram, FACTOR).mul_(inverse), x)
    else:
        # Without a root singular values differ more, which takes a third polynomial.
        x = _iterated(x * inverse, gram, 2 if rooted else 3)
    return (x.mT if tall else x).to(stack.dtype)


def _iterated(x: Tensor, gram: Tensor, iterations: int) -> Tensor:
    for k, (a, b, c) in enumerate(POLYNOMIALS[iterations]):
        gram = torch.bmm(x, x.mT) if k else gram
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _inverse_root(square: Tensor, step: Halley) -> Tensor:
    """Overwrite positive matrices with eigenvalues up to one by about their inverse roots."""
    square.mul_(step.c).diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, _ = torch.linalg.cholesky_ex(square)
    root = torch.cholesky_inverse(factor).mul_(step.e)
    root.diagonal(dim1=-2, dim2=-1).add_(step.d)
    return root


def pack(covariances: Tensor, roots: Tensor) -> Tensor:
    """Return symmetric matrices (K, s, s) and their roots in half the memory, shape (K, s (s + 1)).

    Rows of s + 1 numbers hold the lower triangle of the one and the upper triangle of the other. A
    flat array cannot be mistaken for a shard of a parameter.
    """
    both = F.pad(covariances.tril(), (0, 1))
    both[..., 1:] += roots.triu()
    return both.flatten(-2)


def covariances_of(packed: Tensor) -> Tensor:
    """Return the covariances (K, s, s) from what :func:`pack` has returned."""
    side = math.isqrt(packed.shape[-1])
    lower = packed.view(-1, side, side + 1)[..., :-1].tril()
    lower += lower.tril(-1).mT
    return lower


def roots_of(packed: Tensor) -> Tensor:
    """Return the roots (K, s, s) from what :func:`pack` has returned."""
    side = math.isqrt(packed.shape[-1])
    upper = packed.view(-1, side, side + 1)[..., 1:].triu()
    upper += upper.triu(1).mT
    return upper


def observe(packed: Sequence[Tensor], matrices: Sequence[Tensor], decay: float) -> None:
    r"""Update the covariances of matrices in place, and their inverse square roots.

    .. math:: L \leftarrow \rho L + (1 - \rho) \, M M^\top / \|M\|_F^2, \qquad R \approx L^{-1/2}

    for the shorter side of each matrix M, and R up to scale. Eigenvalues far below the largest get
    a smaller root than their own; the root of zero is a multiple of the identity. Covariances in 16
    bits are not quite positive, so :math:`2^{-7} \|L\|_F` is added to their diagonals first.

    Args:
        packed: L and R of each tensor, see :func:`pack`; empty ones stay.
        matrices: The newest matrices, of at least 32 bits.
        decay: :math:`\rho`, in [0, 1).
    """
    for members in _alike(matrices, packed):
        known = [packed[k] for k in members]
        if not known[0].numel():
            continue
        covariances = covariances_of(upcast(torch.stack(known)))
        newest = torch.stack([matrices[k] for k in members]).flatten(2)
        covariances.lerp_(_normalised_grams(newest), 1.0 - decay)
        square = covariances / lengths(covariances)
        if known[0].dtype == torch.bfloat16:
            square.diagonal(dim1=-2, dim2=-1).add_(ROOT_FLOOR)
        square /= CUSHION * lengths(torch.bmm(square, square)).sqrt()
        root = _inverse_root(square, ROOT) if square.is_cpu else _by_products(square)
        torch._foreach_copy_(known, pack(covariances, root).unbind())


def _normalised_grams(stack: Tensor) -> Tensor:
    rows = stack.mT if stack.shape[-2] > stack.shape[-1] else stack
    rows = rows / rows.abs().amax((-2, -1), keepdim=True).clamp_min_(_TINY)
    rows /= lengths(rows)
    return torch.bmm(rows, rows.mT)


def _by_products(square: Tensor) -> Tensor:
    """Return what :func:`_inverse_root` returns, by matrix products alone."""
    root = step = _evaluated(square, *POLYNOMIALS[3][0])
    for coefficients in POLYNOMIALS[3][1:]:
        square = torch.bmm(torch.bmm(step, square), step)
        step = _evaluated(square, *coefficients)
        root = torch.bmm(step, root)
    return root


def _evaluated(square: Tensor, a: float, b: float, c: float) -> Tensor:
    step = torch.baddbmm(square, square, square, beta=b, alpha=c)
    step.diagonal(dim1=-2, dim2=-1).add_(a)
    return step
