"""The array kernels that forecasting needs, whatever library holds the arrays."""

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
    r"""Check that an average of the backend's type can follow what it averages.

    An increment :math:`(1 - \gamma)(g - m)` below half the spacing of bfloat16 is rounded away, so
    an entry stops within :math:`2^{-8} / (1 - \gamma)` of a value that does not change: 8 % at
    0.95.

    Raises:
        ConfigError: If ``decay`` is above 0.95 and averages are kept in bfloat16.
    """
    if backend.history == "bfloat16" and decay > 0.95:
        raise ConfigError(
            "history_dtype",
            "'float32' with averages whose decay is above 0.95",
            backend.history,
            "Lower the decay, or keep averages in 32 bits.",
        )


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of what an array is read as: the first dimension, or one, and the rest."""
    if len(shape) > 1:
        return shape[0], math.prod(shape[1:])
    return 1, math.prod(shape)


class AbstractBackend(ABC, Generic[Array]):
    """Kernels over lists of arrays, one array per parameter tensor.

    Every method returns its result; a backend whose arrays are mutable may also have written it
    into the first argument, so callers keep the returned list and forget the argument.

    Args:
        history: How histories are stored, out of ``config.HISTORY_DTYPES``.

    Raises:
        ConfigError: If it is none of them.
    """

    name: str
    history: str = "float32"

    def __init__(self, history: str = "float32") -> None:
        if history not in HISTORY_DTYPES:
            raise ConfigError("history_dtype", f"one of {', '.join(HISTORY_DTYPES)}", history)
        self.history = history

    @abstractmethod
    def zeros(self, like: Sequence[Array], history: str | None = None) -> list[Array]:
        """Zeros of the same shapes, stored as ``history`` (the backend's own if None).

        As float32, 64-bit inputs are kept in 64 bits.
        """

    @abstractmethod
    def constants(self, values: Sequence[float], like: Sequence[Array]) -> Array:
        """A 32-bit array of these K numbers, shape (K,), beside the arrays ``like``."""

    def matrices(self, like: Sequence[Array]) -> list[tuple[int, int]]:
        """Rows and columns of what every whole array is read as, see :func:`as_matrix`."""
        return [as_matrix(x.shape) for x in like]  # type: ignore[attr-defined]

    @abstractmethod
    def zero_rows(self, like: Sequence[Array]) -> list[Array]:
        """An empty second moment of every row of each full array, shape (rows,), 32-bit."""

    @abstractmethod
    def copy(self, target: Sequence[Array], source: Sequence[Array]) -> list[Array]:
        """Target := source, element by element."""

    @abstractmethod
    def add_scaled(
        self, target: Sequence[Array], other: Sequence[Array], factors: Sequence[Any]
    ) -> list[Array]:
        """Target[k] := target[k] + factors[k] * other[k], for numbers or 0-dim arrays."""

    @abstractmethod
    def average(self, mean: Sequence[Array], value: Sequence[Array], decay: float) -> list[Array]:
        """Mean := decay * mean + (1 - decay) * value.

        Computed in at least 32 bits and rounded to the nearest number of the mean's type.
        """

    @abstractmethod
    def norms(self, arrays: Sequence[Array]) -> Array:
        """Frobenius norm of each array, shape (K,), at least 32-bit."""

    @abstractmethod
    def distances(
        self, left: Sequence[Array], right: Sequence[Array], factors: Sequence[Any]
    ) -> Array:
        """Frobenius norm of each left[k] - factors[k] * right[k], shape (K,), at least 32-bit."""

    @abstractmethod
    def dots(self, left: Sequence[Array], right: Sequence[Array]) -> Array:
        """Inner product of each pair of arrays, shape (K,), at least 32-bit."""

    @abstractmethod
    def angles(self, left: Sequence[Array], right: Sequence[Array]) -> tuple[Array, Array]:
        """Frobenius norms of the left arrays, and cosines of their angles with the right ones.

        Returns:
            Both of shape (K,), at least 32-bit; a cosine is 0 where either array is zero.
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
    ) -> tuple[list[Array], Sequence[Array] | None]:
        r"""New arrays :math:`-P / \|P\|`, from the orthogonal factor O of the average M.

        .. math:: M = \gamma_k \, \text{mean}_k + (1 - \gamma_k) \, \text{value}_k, \qquad
            r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
            P_{ij} = O_{ij} / \sqrt{r_i}

        Arrays of more than two dimensions are read as matrices of shape (first, rest). O comes from
        the polynomials of ``tensors.polynomials``, so singular values that are not far below the
        largest end near one (between 0.7 and 1.3), not exactly at one. Where M is zero the result
        is, and where it has fewer than two dimensions P is M itself.

        Args:
            mean: K averages.
            value: What is averaged in once more, shaped like them.
            decays: :math:`\gamma`, K numbers, dimensionless.
            iterations: Polynomials, from 1 to 5.
            rows: r of each array, shape (rows,), with :math:`\rho` = ``ROW_MEMORY``; without it P
                is O.
            block: Most rows of the shorter side that are made orthogonal to each other; of more, O
                is put together from parts. None for all, 1 for rows of equal length alone.

        Returns:
            The arrays, of at least 32 bits, and the new r.
        """

    def flatten_operations(self, like: Sequence[Array], iterations: int, block: int | None) -> int:
        """Operations of the matrix products in :meth:`flatten_spectrum`, of whole arrays.

        Args:
            like: K arrays.
            iterations: Polynomials, from 1 to 5.
            block: Most rows of the shorter side that are treated together; None for all.
        """
        total = 0
        for x, (height, width) in zip(like, self.matrices(like), strict=True):
            count, short = split_rows(min(height, width), block)
            if x.ndim > 1 and short > 1:  # type: ignore[attr-defined]
                total += count * self._operations(x, short, max(height, width), iterations)
        return total

    def _operations(self, like: Array, short: int, long: int, iterations: int) -> int:
        """Those of one part: a Gram matrix, its square, and a product with the part per step."""
        return iterations * (4 * short**2 * long + 2 * short**3)
