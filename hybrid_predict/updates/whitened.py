"""The whitened update: the spectral update of gradients whitened by their covariances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from hybrid_predict.errors import ConfigError
from hybrid_predict.rules.budget import as_matrix
from hybrid_predict.rules.polynomials import ROOT_PRODUCTS
from hybrid_predict.updates.base import UpdateState
from hybrid_predict.updates.spectral import SpectralUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from hybrid_predict.torch.matrices import Roots

COVARIANCE_DECAY, SEEN_EVERY, ROOTS_EVERY = 0.95, 5, 10
"""Decay of covariances per full step; gradients of a matrix from one that updates them to the next,
and from one computation of their roots to the next (decision 27)."""

EARLY = 3  # first gradients of a matrix that all count, with new roots after each
_SIDES = ("left", "right")


@final
@dataclass(frozen=True, kw_only=True)
class WhitenedUpdate(SpectralUpdate):
    r"""The spectral update of gradients that are first whitened by their covariances.

    .. math::
        L \leftarrow \rho L + (1 - \rho) \, g g^\top / \|g\|_F^2, \qquad
        R \leftarrow \rho R + (1 - \rho) \, g^\top g / \|g\|_F^2, \\
        L^{-1/4} \bigl( (1 - \nu_t) m + \nu_t g \bigr) R^{-1/4} = U \Sigma V^\top

    with the names of :class:`SpectralUpdate`, which then applies to the result; S and T only to
    sides that have no covariance. Rows and columns whose gradients are large or correlated get less
    weight. A gradient that is not finite counts as the average. On the benchmark this direction is
    better and takes more operations and memory.

    Operations grow with the weights, not with the batch, so they are affordable where batches are
    large. With fewer rows in a block than twice a side, ``max_overhead`` leaves out the
    covariance of that side. Memory for a matrix of m rows and n columns is 2 (m² + n²) numbers of
    32 bits, of 64 for weights of 64 bits; on several ranks only the owner of the matrix has them.

    Args:
        longest: Longest side that has a covariance, at least 1.

    Raises:
        ConfigError: If an argument is invalid.

    References: Roots of covariances: Gupta, Koren and Singer, Shampoo (2018),
    https://arxiv.org/abs/1802.09568 Orthogonalization after whitening: decisions 26 and 27.
    """

    reads_gradients: ClassVar[bool] = True

    longest: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.longest) is not int or self.longest < 1:
            raise ConfigError("longest", "an integer of at least 1", self.longest)

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        """Return the state of the spectral update, zero covariances, and the identity as roots."""
        import torch

        from hybrid_predict.torch.matrices import diagonals

        state = super().init(like, history)
        for axis, side in enumerate(_SIDES):
            sizes = [
                shape[axis] if x.dim() > 1 and shape[axis] <= self.longest else 0
                for x, shape in zip(like, state.shapes, strict=True)
            ]
            state.arrays[side] = diagonals(like, sizes, 0.0, history)
            state.arrays[f"{side} root"] = diagonals(like, sizes, 1.0, history)
        # On the host, so that reading them does not wait.
        state.arrays["steps"] = [torch.zeros((), dtype=torch.int64, device="cpu") for _ in like]
        return state

    def _roots(
        self, state: UpdateState, members: Sequence[int], gradients: Sequence[Tensor]
    ) -> Roots:
        """Return the inverse roots of both covariances, recomputed when they are due."""
        from hybrid_predict.torch.matrices import inverse_roots, update_covariances

        left, right = (self._used(state, axis, "") for axis in range(2))
        roots = [self._used(state, axis, " root") for axis in range(2)]
        decay, turn = COVARIANCE_DECAY**SEEN_EVERY, []
        for position, k in enumerate(members):
            step = int(state.arrays["steps"][k])
            if left[k].numel() + right[k].numel() and (step < EARLY or step % SEEN_EVERY == 0):
                update_covariances((left[k], right[k]), gradients[position], decay)
            if step < EARLY or step % ROOTS_EVERY == 0:
                turn.append(k)
            state.arrays["steps"][k] += 1
        for covariances, own in zip((left, right), roots, strict=True):
            inverse_roots([covariances[k] for k in turn], [own[k] for k in turn])
        return [roots[0][k] for k in members], [roots[1][k] for k in members]

    def _used(self, state: UpdateState, axis: int, name: str) -> list[Tensor]:
        """Return the arrays of one side, empty where it is not whitened in such blocks."""
        longest, arrays = self._longest_side(state.block), state.arrays[_SIDES[axis] + name]
        pairs = zip(arrays, state.shapes, strict=True)
        return [x if shape[axis] <= longest else x[:0] for x, shape in pairs]

    def limited(self, block: int) -> str:
        """Describe which covariances are left out."""
        if (longest := block // 2) >= self.longest:
            return ""
        return f"sides longer than {longest} are not whitened" if longest else "none is whitened"

    def operations(self, like: Sequence[Tensor], block: int | None) -> int:
        """Return the operations of the matrix products, those of roots spread over full steps."""
        products = covariance_operations([x.shape for x in like], self._longest_side(block))
        return super().operations(like, block) + products

    def _longest_side(self, block: int | None) -> int:
        """Return the longest side with a covariance."""
        return self.longest if block is None else min(self.longest, block // 2)


def covariance_operations(shapes: Sequence[Sequence[int]], longest: int) -> int:
    """Return the operations in a full step of covariances up to a side, and of their roots.

    Arrays of fewer than two dimensions take none.
    """
    products = 0.0
    for sides in (as_matrix(shape) for shape in shapes if len(shape) > 1):
        for side in (side for side in sides if side <= longest):
            products += 2 * side * math.prod(sides) * (1 + 1 / SEEN_EVERY)
            products += 2 * ROOT_PRODUCTS * side**3 / ROOTS_EVERY
    return round(products)
