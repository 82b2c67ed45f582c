"""The array kernels that forecasting needs, whatever library holds the arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.errors import ConfigError

Array = TypeVar("Array")

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Quintic coefficients of the orthogonalisation (Jordan et al., Muon, 2024)."""

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
    def difference(self, target: Sequence[Array], other: Sequence[Array]) -> list[Array]:
        """Target := other - target, the displacement when target holds the weights before."""

    @abstractmethod
    def add_scaled(
        self, target: Sequence[Array], other: Sequence[Array], factors: Sequence[float]
    ) -> list[Array]:
        """Target[k] := target[k] + factors[k] * other[k]."""

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
    def cosines(self, left: Sequence[Array], right: Sequence[Array]) -> Array:
        """Cosine of the angle of each pair of arrays, shape (K,); 0 where either array is zero."""

    @abstractmethod
    def flatten_spectrum(
        self,
        target: Sequence[Array],
        mean: Sequence[Array],
        value: Sequence[Array],
        decays: Sequence[float] | Array,
        lengths: Array,
        iterations: int,
        rows: Sequence[Array] | None = None,
    ) -> tuple[list[Array], Sequence[Array] | None]:
        r"""Target[k] := :math:`\ell_k P / \|P\|`, from the orthogonal factor O of the average M.

        .. math:: M = \gamma_k \, \text{mean}_k + (1 - \gamma_k) \, \text{value}_k, \qquad
            r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
            P_{ij} = O_{ij} / \sqrt{r_i}

        Arrays of more than two dimensions are read as matrices of shape (first, rest). The
        orthogonal factor comes from ``iterations`` quintic Newton-Schulz steps, so its singular
        values end near one (between about 0.7 and 1.2), not exactly at one. Where M is zero the
        target is, and where it has fewer than two dimensions P is M itself.

        Args:
            target: K arrays to write to.
            mean: K averages, shaped like them.
            value: What is averaged in once more, shaped like them.
            decays: :math:`\gamma`, K numbers, dimensionless.
            lengths: :math:`\ell`, shape (K,); negative ones turn arrays around.
            iterations: Newton-Schulz steps, at least 1.
            rows: r of each array, shape (rows,), with :math:`\rho` = ``ROW_MEMORY``; without it P
                is O.

        Returns:
            The targets, and the new r.
        """
