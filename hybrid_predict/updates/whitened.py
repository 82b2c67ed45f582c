"""The whitened update: the spectral update of gradients without their covariances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.tensors.base import check_history
from hybrid_predict.tensors.polynomials import ROOT_PRODUCTS
from hybrid_predict.updates.base import UpdateState
from hybrid_predict.updates.spectral import SpectralUpdate, check_decay

SIDES = ("left", "right")

_NAMES = (*SIDES, *(f"{side} root" for side in SIDES))

COVARIANCE_DECAY, SEEN_EVERY, ROOTS_EVERY = 0.95, 5, 10

EARLY = 3
"""First gradients of a matrix that all count, with new roots after each."""


@final
@dataclass(frozen=True, kw_only=True)
class WhitenedUpdate(SpectralUpdate):
    r"""The spectral update, of gradients that are divided by roots of their covariances first.

    .. math::
        L \leftarrow \rho L + (1 - \rho) \, g g^\top / \|g\|_F^2, \qquad
        R \leftarrow \rho R + (1 - \rho) \, g^\top g / \|g\|_F^2, \\
        L^{-1/4} \bigl( (1 - \nu_t) m + \nu_t g \bigr) R^{-1/4} = U \Sigma V^\top

    with the names of :class:`SpectralUpdate`, whose rule goes on from there. Rows and columns
    whose gradients are large or move together count less. A gradient that is not finite counts as
    the average. On the benchmark this direction is better and takes more operations and memory.

    Operations grow with the weights, not with the batch, so they are affordable where batches are
    large. With fewer rows in a block than twice a side, ``max_overhead`` leaves out the
    covariance of that side. Memory for a matrix of m rows and n columns is 2 (m² + n²) numbers of
    32 bits, of 64 for weights of 64 bits; every rank stores all of them if the matrix is sharded.

    Args:
        longest: Longest side that has a covariance, at least 1.
        covariance_decay: Decay per full step, in [0, 1); :math:`\rho` is this to the power of
            ``seen_every``.
        seen_every: Gradients of a matrix from one that its covariances are updated with to the
            next, at least 1.
        roots_every: Gradients from one computation of the roots to the next, at least 1.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        Roots of covariances: Gupta, Koren and Singer, Shampoo (2018),
        https://arxiv.org/abs/1802.09568
        Whitened, then orthogonal: decisions 26 and 27.
    """

    longest: int = 8192
    covariance_decay: float = 0.95
    seen_every: int = 5
    roots_every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("covariance_decay", self.covariance_decay)
        for name in ("longest", "seen_every", "roots_every"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(name, "an integer of at least 1", value)

    def init(self, like: Sequence[Any], backend: AbstractBackend[Any]) -> UpdateState:
        """Return the state of the spectral update, zero covariances, and the identity as roots."""
        check_history(self.covariance_decay**self.seen_every, backend)
        state = super().init(like, backend)
        for name, value in (("", 0.0), (" root", 1.0)):
            pairs = zip(SIDES, backend.diagonals(like, self.longest, value), strict=True)
            state.arrays.update({side + name: matrices for side, matrices in pairs})
        state.arrays["steps"] = backend.counters(like)
        return state

    def _roots(
        self,
        state: UpdateState,
        members: Sequence[int],
        gradients: Sequence[Any],
        backend: AbstractBackend[Any],
    ) -> tuple[list[Any], list[Any]]:
        """The inverse roots of both covariances, computed anew when it is their turn."""
        steps = [state.arrays["steps"][k] for k in members]
        seen, turn = (
            [(step < EARLY) | (step % every == 0) for step in steps]
            for every in (self.seen_every, self.roots_every)
        )
        decay = self.covariance_decay**self.seen_every
        rows, columns = (self._used(state, members, axis, "") for axis in range(2))
        sides = backend.covariances(rows, columns, gradients, decay, seen)
        left, right = (
            backend.inverse_roots(own, self._used(state, members, axis, " root"), turn)
            for axis, own in enumerate(sides)
        )
        for name, arrays in zip(_NAMES, (*sides, left, right), strict=True):
            for k, array in zip(members, arrays, strict=True):
                if array.shape[0]:
                    state.arrays[name][k] = array
        for k, step in zip(members, steps, strict=True):
            state.arrays["steps"][k] = step + 1
        return left, right

    def _used(self, state: UpdateState, members: Sequence[int], axis: int, name: str) -> list[Any]:
        """Arrays of one side; empty ones for sides that are not whitened in such blocks."""
        longest, arrays = self._longest_side(state.block), state.arrays[SIDES[axis] + name]
        return [arrays[k] if state.shapes[k][axis] <= longest else arrays[k][:0] for k in members]

    def limited(self, block: int) -> str:
        """Say which covariances are left out."""
        if (longest := block // 2) >= self.longest:
            return ""
        return f"sides longer than {longest} are not whitened" if longest else "none is whitened"

    def operations(
        self, like: Sequence[Any], backend: AbstractBackend[Any], block: int | None
    ) -> int:
        """Return the operations of the matrix products, those of roots spread over full steps."""
        products = 0.0
        for x, sides in zip(like, backend.matrices(like), strict=True):
            for side in sides if x.ndim > 1 else ():
                if side <= self._longest_side(block):
                    products += 2 * side * math.prod(sides) * (1 + 1 / self.seen_every)
                    products += 2 * ROOT_PRODUCTS * side**3 / self.roots_every
        return super().operations(like, backend, block) + round(products)

    def _longest_side(self, block: int | None) -> int:
        """The longest side with a covariance."""
        return self.longest if block is None else min(self.longest, block // 2)
