"""The interface of array kernels, one implementation per array library."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors.polynomials import split_rows

Array = TypeVar("Array")

ROW_MEMORY = 0.95
"""Decay of the second moments of rows; from 0.9 to 0.99 it made no difference (decision 13)."""


def check_history(decay: float, backend: AbstractBackend[Any]) -> None:
    r"""Check that the backend's type can store an average of this decay.

    In bfloat16, an increment :math:`(1 - \gamma)(g - m)` below half the spacing is rounded away, so
    an entry stops within :math:`2^{-8} / (1 - \gamma)` of a constant value: 8 % at 0.95.

    Raises:
        ConfigError: If ``decay`` is above 0.95 and averages are kept in bfloat16.
    """
    if backend.history == "bfloat16" and decay > 0.95:
        raise ConfigError(
            "history_dtype",
            "'float32' for averages with a decay above 0.95",
            backend.history,
            "Lower the decay, or store averages in 32 bits.",
        )


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of an array that is read as a matrix.

    Rows are the first dimension, columns the product of the others; an array of fewer than two
    dimensions has one row.
    """
    if len(shape) > 1:
        return shape[0], math.prod(shape[1:])
    return 1, math.prod(shape)


class AbstractBackend(ABC, Generic[Array]):
    """Kernels over lists of arrays, one array per parameter.

    Every method returns its result. A backend with mutable arrays may write the result into the
    first argument, so callers use the returned list instead of the argument.

    Args:
        history: Type in which averages are stored, one of ``config.HISTORY_DTYPES``.

    Raises:
        ConfigError: If ``history`` is another type.
    """

    name: str
    history: str = "float32"

    def __init__(self, history: str = "float32") -> None:
        if history not in HISTORY_DTYPES:
            raise ConfigError("history_dtype", f"one of {', '.join(HISTORY_DTYPES)}", history)
        self.history = history

    @abstractmethod
    def zeros(self, like: Sequence[Array], history: str | None = None) -> list[Array]:
        """Return zeros of the same shapes, stored as ``history`` (None for the backend's own type).

        With float32, arrays like 64-bit inputs have 64 bits.
        """

    @abstractmethod
    def constants(self, values: Sequence[float], like: Sequence[Array]) -> Array:
        """Return a 32-bit array of K numbers, shape (K,), on the device of the arrays ``like``."""

    def matrices(self, like: Sequence[Array]) -> list[tuple[int, int]]:
        """Return rows and columns of each full array, see :func:`as_matrix`."""
        return [as_matrix(x.shape) for x in like]  # type: ignore[attr-defined]

    @abstractmethod
    def zero_rows(self, like: Sequence[Array]) -> list[Array]:
        """Return zero second moments for the rows of each full array, shape (rows,), 32-bit."""

    @abstractmethod
    def copy(self, target: Sequence[Array], source: Sequence[Array]) -> list[Array]:
        """Copy ``source`` to ``target``, element by element."""

    @abstractmethod
    def add_scaled(
        self, target: Sequence[Array], other: Sequence[Array], factors: Sequence[Any]
    ) -> list[Array]:
        """Compute target[k] := target[k] + factors[k] * other[k], for numbers or 0-dim arrays."""

    @abstractmethod
    def average(self, mean: Sequence[Array], value: Sequence[Array], decay: float) -> list[Array]:
        """Update a running average: mean := decay * mean + (1 - decay) * value.

        It is computed in at least 32 bits and rounded to the nearest number of the mean's type.
        """

    @abstractmethod
    def norms(self, arrays: Sequence[Array]) -> Array:
        """Return the Frobenius norm of each array, shape (K,), at least 32-bit."""

    @abstractmethod
    def distances(
        self, left: Sequence[Array], right: Sequence[Array], factors: Sequence[Any]
    ) -> Array:
        """Return the norm of each left[k] - factors[k] * right[k], shape (K,), at least 32-bit."""

    @abstractmethod
    def dots(self, left: Sequence[Array], right: Sequence[Array]) -> Array:
        """Return the inner product of each pair of arrays, shape (K,), at least 32-bit."""

    @abstractmethod
    def angles(self, left: Sequence[Array], right: Sequence[Array]) -> tuple[Array, Array]:
        """Return norms of the left arrays, and cosines of their angles with the right ones.

        Returns:
            Both of shape (K,), at least 32-bit; a cosine is 0 if either array is zero.
        """

    @abstractmethod
    def flatten_spectrum(
        self,
        mean: Sequence[Array],
        value: Sequence[Array],
        decays: Sequence[float] | Array,
        iterations: int,
        rows: Sequence[Array] | None = None,
        block: int | None = None,
        roots: tuple[Sequence[Array], Sequence[Array]] | None = None,
    ) -> tuple[list[Array], Sequence[Array] | None]:
        r"""Return new arrays :math:`-P / \|P\|`, from the orthogonal factor O of the average M.

        .. math:: M = A \, \bigl( \gamma_k \, \text{mean}_k + (1 - \gamma_k) \, \text{value}_k
            \bigr) \, B, \qquad
            r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
            P_{ij} = O_{ij} / \sqrt{r_i}

        Arrays of more than two dimensions are read as matrices of shape (first, rest). O is
        computed with the polynomials of ``tensors.polynomials``: singular values that are not far
        below the largest become about one (0.7 to 1.3), not exactly one. If M is zero, the result
        is zero; if it has fewer than two dimensions, P is M.

        Args:
            mean: K averages.
            value: K newest values, shaped like the averages.
            decays: :math:`\gamma`, K numbers, dimensionless.
            iterations: Number of polynomials, from 1 to 5.
            rows: r of each array, shape (rows,), with :math:`\rho` = ``ROW_MEMORY``; None to use O
                in place of P.
            block: Largest number of rows of the shorter side that are made orthogonal to each
                other; a longer side is split. None for all, 1 for rows of unit length only.
            roots: A and B of each array, as :meth:`inverse_roots` returns them; an empty array
                stands for the identity, None for all of them.

        Returns:
            The arrays, of at least 32 bits, and the new r.
        """

    @abstractmethod
    def diagonals(
        self, like: Sequence[Array], longest: int, value: float
    ) -> tuple[list[Array], list[Array]]:
        """Return diagonal matrices for the rows and for the columns of each full array.

        A matrix for a side of length m is a flat array of shape (m²,), stored like :meth:`zeros`.
        Flat, it cannot be taken for a shard of a parameter. Sides longer than ``longest`` get an
        empty array, and so do those of arrays of fewer than two dimensions.

        Args:
            like: K arrays.
            longest: Longest side with a matrix.
            value: Number on the diagonals.
        """

    @abstractmethod
    def covariances(
        self,
        left: Sequence[Array],
        right: Sequence[Array],
        value: Sequence[Array],
        decay: float,
        due: Sequence[Any],
    ) -> tuple[list[Array], list[Array]]:
        r"""Update running covariances of rows and columns with the newest values.

        .. math:: L \leftarrow \rho L + (1 - \rho) \, V V^\top / \|V\|^2, \qquad
            R \leftarrow \rho R + (1 - \rho) \, V^\top V / \|V\|^2

        Args:
            left: L of K arrays, in the form of :meth:`diagonals`; empty ones stay.
            right: R of these arrays.
            value: V, the K newest values.
            decay: :math:`\rho` in [0, 1).
            due: K 0-dim conditions made of :meth:`counters`; where one does not hold, L and R stay.
        """

    @abstractmethod
    def inverse_roots(
        self, covariances: Sequence[Array], roots: Sequence[Array], due: Sequence[Any]
    ) -> list[Array]:
        r"""Return :math:`C^{-1/4}` of each covariance C, but for its scale, in the same form.

        It is computed by the polynomials of ``tensors.polynomials``. Eigenvalues far below the
        largest get a smaller root than their own. The root of zero is a multiple of the identity.
        Covariances that are stored in 16 bits are not quite positive, so :math:`2^{-7} \|C\|_F` is
        added to their diagonals first.

        Args:
            covariances: C of K sides.
            roots: The roots before.
            due: K 0-dim conditions; where one does not hold, the root stays.
        """

    @abstractmethod
    def counters(self, like: Sequence[Array]) -> list[Array]:
        """Return a 0-dim integer 0 for each array.

        With torch they are on the host, so that no device is waited for when they are read.
        """

    def flatten_operations(self, like: Sequence[Array], iterations: int, block: int | None) -> int:
        """Return the operations of the products in :meth:`flatten_spectrum`, for full arrays.

        Args:
            like: K arrays.
            iterations: Number of polynomials, from 1 to 5.
            block: Largest number of rows that are treated together; None for all.
        """
        total = 0
        for x, (height, width) in zip(like, self.matrices(like), strict=True):
            count, short = split_rows(min(height, width), block)
            if x.ndim > 1 and short > 1:  # type: ignore[attr-defined]
                total += count * self._operations(x, short, max(height, width), iterations)
        return total

    def _operations(self, like: Array, short: int, long: int, iterations: int) -> int:
        """Operations of one block: per polynomial a Gram matrix, its square, and a product."""
        return iterations * (4 * short**2 * long + 2 * short**3)
