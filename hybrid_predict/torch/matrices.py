"""Orthogonal factors, scales of rows and columns, and inverse roots of stacks of matrices."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from hybrid_predict.rules.budget import as_matrix, split_rows, uses_gram
from hybrid_predict.rules.polynomials import (
    CUSHION,
    MOMENT_DECAY,
    MOST_ENERGY,
    POLYNOMIALS,
    ROOT_FLOOR,
    ROOT_POLYNOMIALS,
)
from hybrid_predict.torch.lists import is_half, stored_as, upcast

_TINY = torch.finfo(torch.float32).tiny

_SQUARED = (1e-20, 1e20)
"""Range of lengths of a Gram matrix in which its squares and products fit in 32 bits."""

_TOGETHER = 2**20
"""Entries of the covariances whose roots are computed together, with six copies in between."""

Roots = tuple[Sequence[Tensor], Sequence[Tensor]]
"""What each matrix is multiplied with from the left and from the right, flat; empty for nothing."""


@final
class Moments(NamedTuple):
    """Second moments of each matrix M and of its orthogonal factor O, updated in place."""

    energies: Sequence[Tensor]  # shares of |M|^2 of the rows, then of the columns of M
    levels: Sequence[Tensor]  # mean squares of the rows of O


def flatten(
    matrices: list[Tensor],
    iterations: int,
    moments: Moments,
    block: int | None = None,
    roots: Roots | None = None,
) -> list[Tensor]:
    r"""Return :math:`-P / \|P\|` for each matrix M, from an orthogonal factor O; zero for zero.

    .. math:: s_i \leftarrow \rho s_i + (1 - \rho) \, \|M_i\|^2 / \|M\|_F^2, \qquad
        a_i = \min \bigl( 4, \max (\tfrac14, s_i / \bar s) \bigr)^{-1/4}, \qquad
        O \approx U V^\top \text{ of } A M B, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        P_{ij} = a_i \, O_{ij} \, b_j / \sqrt{r_i}

    A is diagonal with the entries :math:`a_i` from the rows of M, and B likewise with :math:`b_j`
    from its columns. A side that has a root is multiplied with that before, and with nothing after.

    Tensors of more than two dimensions are read as matrices of shape (first, rest); if there are
    fewer than two, P is M. Singular values that are not far below the largest become about one (0.7
    to 1.3), not exactly one. Matrices of one shape are stacked and treated together.

    Args:
        matrices: K tensors of at least 32 bits; the list is overwritten with the results.
        iterations: Number of polynomials of ``rules.polynomials``, from 1 to 5.
        moments: s of rows and columns, shape (rows + columns,), and r, shape (rows,).
        block: Most rows of the shorter side that are made orthogonal to each other; None for all.
        roots: A and B of each matrix, as :func:`inverse_roots` returns them.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    for k, x in enumerate(matrices):
        rooted = tuple(side[k].numel() > 0 for side in roots) if roots else (False, False)
        groups[(*as_matrix(x.shape), x.dim() > 1, rooted, x.dtype, x.device)].append(k)
    for (height, width, flattens, rooted, *_), members in groups.items():
        stack = torch.stack([matrices[k].reshape(height, width) for k in members])
        if flattens:
            energies, levels = ([each[k] for k in members] for each in moments)
            scales = [] if all(rooted) else _scales(stack, energies, rooted)
            _multiply(stack, scales)
            if roots is not None:
                _whiten(stack, roots, members)
            stack = _levelled(orthogonal(stack, iterations, block), levels)
            if scales:
                _multiply(stack, scales).mul_(1.0 / lengths(stack))
        else:
            stack.mul_(-1.0 / lengths(stack))
        for x, k in zip(stack.contiguous(), members, strict=True):
            matrices[k] = x.view(matrices[k].shape)
    return matrices


def _scales(stack: Tensor, energies: Sequence[Tensor], rooted: Sequence[bool]) -> list[Tensor]:
    """Update the energies, and return the scales of rows and columns that have no root.

    The matrices are scaled to a largest entry of one, so that their squares fit in 32 bits.
    """
    # Norms of columns and largest norms take ten times as long on the CPU as these sums and maxima.
    stack.div_(stack.abs().amax((-2, -1), keepdim=True).clamp_min_(_TINY))
    squares = stack.square()
    shares = torch.cat([squares.sum(axis) for axis in (-1, -2)], -1).to(energies[0])
    shares.div_(shares.sum(-1, keepdim=True).mul_(0.5).clamp_min_(_TINY))
    torch._foreach_lerp_(list(energies), list(shares.unbind()), 1.0 - MOMENT_DECAY)
    sides = torch.stack(list(energies)).split(stack.shape[-2:], -1)
    return [
        (side / side.mean(-1, keepdim=True).clamp_min_(_TINY))
        .clamp_(1.0 / MOST_ENERGY, MOST_ENERGY)
        .pow_(-0.25)
        .to(stack)
        .unsqueeze(axis)
        for side, axis, has_root in zip(sides, (-1, -2), rooted, strict=True)
        if not has_root
    ]


def _multiply(stack: Tensor, scales: Sequence[Tensor]) -> Tensor:
    for scale in scales:
        stack.mul_(scale)
    return stack


def _levelled(stack: Tensor, moments: Sequence[Tensor]) -> Tensor:
    """Update the second moments of rows, divide the rows by their roots, and scale to length -1."""
    norms = torch.linalg.vector_norm(stack, dim=-1)
    squares = norms.square().div_(stack.shape[-1]).to(moments[0])
    torch._foreach_lerp_(list(moments), list(squares.unbind()), 1.0 - MOMENT_DECAY)
    roots = torch.stack(list(moments)).clamp_min_(_TINY).sqrt_().to(stack)
    sizes = torch.linalg.vector_norm(norms / roots, dim=-1, keepdim=True).clamp_min_(_TINY)
    return stack.mul_(roots.mul_(sizes).clamp_min_(_TINY).reciprocal_().neg_().unsqueeze(-1))


def _whiten(stack: Tensor, roots: Roots, members: Sequence[int]) -> None:
    """Multiply K matrices of one shape with their roots from the left and from the right."""
    height, width = stack.shape[-2:]
    # One by one: a stack of the roots can be larger than the matrices.
    for x, k in zip(stack, members, strict=True):
        left, right = roots[0][k], roots[1][k]
        if left.numel():
            x.copy_(left.view(height, height).to(x) @ x)
        if right.numel():
            x.copy_(x @ right.view(width, width).to(x))


def lengths(stack: Tensor) -> Tensor:
    """Return the Frobenius norm of each matrix, at least the smallest normal number."""
    return torch.linalg.vector_norm(stack, dim=(-2, -1), keepdim=True).clamp_min(_TINY)


def orthogonal(stack: Tensor, iterations: int, block: int | None = None) -> Tensor:
    """Return the orthogonal factor of every matrix of a stack of 32 or 64 bits."""
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    matrices, short, long = x.shape
    count, size = split_rows(short, block)
    if count > 1:
        missing = count * size - short
        x = F.pad(x, (0, 0, 0, missing)) if missing else x.contiguous()
        x = x.reshape(-1, size, long)
    x = normalised_rows(x) if size == 1 else _polar(x, iterations)
    if count > 1:
        x = x.reshape(matrices, -1, long)[:, :short]
    return (x.mT if tall else x).to(stack.dtype)


def normalised_rows(x: Tensor) -> Tensor:
    """Scale every row to length one."""
    x = x / x.abs().amax(-1, keepdim=True).clamp_min(_TINY)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_TINY)


def _polar(x: Tensor, iterations: int) -> Tensor:
    """Return the orthogonal factor of every wide matrix of a stack.

    On CUDA devices the polynomials are evaluated one after the other: the eigenvalues of the Gram
    matrix are squares, which need more than the 16 bits that make accelerators fast.
    """
    x, gram, norms = _with_gram(x)
    inverse = (CUSHION * norms.sqrt()).reciprocal_()
    gram.mul_(inverse.square())
    polynomials = POLYNOMIALS[iterations]
    if not x.is_cuda and uses_gram(*x.shape[-2:]):
        return torch.bmm(polynomial(gram, polynomials).mul_(inverse), x)
    x = x * inverse
    for k, (a, b, c) in enumerate(polynomials):
        gram = torch.bmm(x, x.mT) if k else gram
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _with_gram(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a stack, its Gram matrices and their norms, scaled if squares may leave 32 bits."""
    if x.device.type == "cpu":  # where reading does not wait
        gram = torch.bmm(x, x.mT)
        norms = lengths(gram)
        if all(_SQUARED[0] < norm < _SQUARED[1] for norm in norms.flatten().tolist()):
            return x, gram, norms
    x = x / x.abs().amax((-2, -1), keepdim=True).clamp_min(_TINY)
    x = x.bfloat16() if x.is_cuda and x.dtype == torch.float32 else x
    gram = torch.bmm(x, x.mT)
    return x, gram, lengths(gram)


def polynomial(gram: Tensor, polynomials: Sequence[tuple[float, float, float]]) -> Tensor:
    """Return the polynomial of X Xᵀ that X is multiplied with."""
    step = factor = _evaluated(gram, *polynomials[0])
    for coefficients in polynomials[1:]:
        gram = torch.bmm(torch.bmm(step, gram), step)
        step = _evaluated(gram, *coefficients)
        factor = torch.bmm(step, factor)
    return factor


def _evaluated(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    step.diagonal(dim1=-2, dim2=-1).add_(a)
    return step


def diagonals(
    like: Sequence[Tensor], sides: Sequence[int], value: float, history: str
) -> list[Tensor]:
    """Return one flat diagonal matrix per tensor, of shape (side²,).

    A flat matrix cannot be mistaken for a shard of a parameter.
    """
    flat = []
    for x, side in zip(like, sides, strict=True):
        flat.append(torch.zeros(side * side, dtype=stored_as(history, x), device=x.device))
        flat[-1][:: side + 1] = value
    return flat


def update_covariances(sides: tuple[Tensor, Tensor], value: Tensor, decay: float) -> None:
    r"""Update the flat covariances L and R of a matrix V in place; empty ones stay.

    .. math:: L \leftarrow \rho L + (1 - \rho) \, V V^\top / \|V\|^2, \qquad
        R \leftarrow \rho R + (1 - \rho) \, V^\top V / \|V\|^2
    """
    x = normalised_rows(upcast(value).reshape(-1)).reshape(as_matrix(value.shape))
    for covariance, rows in zip(sides, (x, x.mT), strict=True):
        if covariance.numel():
            square = (rows @ rows.mT).reshape(-1).to(covariance.device)
            mean = covariance.to(square.dtype) if is_half(covariance) else covariance
            covariance.copy_(torch.lerp(mean, square.to(mean.dtype), 1.0 - decay))


def inverse_roots(covariances: Sequence[Tensor], roots: Sequence[Tensor]) -> None:
    r"""Write :math:`C^{-1/4}` of each covariance C, up to scale, to ``roots``; both flat.

    The orthogonal factor of a root B of C is p(C) B, so p(C) is near the inverse of B. The same
    polynomials applied to that once more give the root of it. Eigenvalues far below the largest get
    a smaller root than their own. The root of zero is a multiple of the identity. Covariances in 16
    bits are not quite positive, so :math:`2^{-7} \|C\|_F` is added to their diagonals first.
    """
    groups: dict[Any, list[int]] = defaultdict(list)
    for k, x in enumerate(covariances):
        if x.numel():
            groups[x.numel(), x.dtype, x.device].append(k)
    first, second = (POLYNOMIALS[count] for count in ROOT_POLYNOMIALS)
    for (size, *_), members in groups.items():
        side, together = math.isqrt(size), max(1, _TOGETHER // size)
        for start in range(0, len(members), together):
            chosen = members[start : start + together]
            stack = torch.stack([upcast(covariances[k]).view(side, side) for k in chosen])
            if is_half(covariances[chosen[0]]):
                stack = stack / lengths(stack)
                stack.diagonal(dim1=-2, dim2=-1).add_(ROOT_FLOOR)
            square_roots = _shrunk(polynomial(_shrunk(stack), first))
            fourth_roots = torch.bmm(square_roots, polynomial(square_roots, second))
            for k, root in zip(chosen, fourth_roots, strict=True):
                roots[k].copy_(root.reshape(-1))


def _shrunk(stack: Tensor) -> Tensor:
    """Scale symmetric matrices so that the largest eigenvalue is not far below one."""
    stack = stack / lengths(stack)
    return stack / (CUSHION * lengths(torch.bmm(stack, stack)).sqrt())
