"""The NumPy backend: a slow, plain reference that all other backends are tested against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hybrid_predict.tensors.base import ROW_MEMORY, AbstractBackend
from hybrid_predict.tensors.polynomials import CUSHION, POLYNOMIALS, split_rows

NDFloat = NDArray[Any]


@final
class NumpyBackend(AbstractBackend[NDFloat]):
    """Kernels written like their definitions, one array at a time, without side effects."""

    name = "numpy"

    def zeros(self, like: Sequence[NDFloat], history: str | None = None) -> list[NDFloat]:
        """Return zeros; NumPy has no bfloat16, so its values are stored in 32 bits."""
        narrow = (history or self.history) == "bfloat16"
        return [
            np.zeros(x.shape, np.float32 if narrow or x.dtype.itemsize < 4 else x.dtype)
            for x in like
        ]

    def constants(self, values: Sequence[float], like: Sequence[NDFloat]) -> NDFloat:
        """Return an array of these numbers."""
        return np.array(values, np.float32)

    def zero_rows(self, like: Sequence[NDFloat]) -> list[NDFloat]:
        """Return zero second moments, one per row."""
        return [np.zeros(m, np.float32) for m, _ in self.matrices(like)]

    def copy(self, target: Sequence[NDFloat], source: Sequence[NDFloat]) -> list[NDFloat]:
        """Copy ``source`` to ``target``, element by element."""
        return [y.astype(x.dtype) for x, y in zip(target, source, strict=True)]

    def add_scaled(
        self, target: Sequence[NDFloat], other: Sequence[NDFloat], factors: Sequence[Any]
    ) -> list[NDFloat]:
        """Compute target[k] := target[k] + factors[k] * other[k]."""
        triples = zip(target, other, factors, strict=True)
        return [(x + f * y).astype(x.dtype) for x, y, f in triples]

    def average(
        self, mean: Sequence[NDFloat], value: Sequence[NDFloat], decay: float
    ) -> list[NDFloat]:
        """Update a running average: mean := decay * mean + (1 - decay) * value."""
        pairs = zip(mean, value, strict=True)
        return [self._stored(decay * m + (1.0 - decay) * v) for m, v in pairs]

    def norms(self, arrays: Sequence[NDFloat]) -> NDFloat:
        """Return the Frobenius norm of each array, shape (K,)."""
        return np.array([np.sqrt((x.astype(np.float64) ** 2).sum()) for x in arrays])

    def distances(
        self, left: Sequence[NDFloat], right: Sequence[NDFloat], factors: Sequence[Any]
    ) -> NDFloat:
        """Return the Frobenius norm of each left[k] - factors[k] * right[k], shape (K,)."""
        triples = zip(left, right, factors, strict=True)
        return self.norms([x.astype(np.float64) - f * y.astype(np.float64) for x, y, f in triples])

    def dots(self, left: Sequence[NDFloat], right: Sequence[NDFloat]) -> NDFloat:
        """Return the inner product of each pair of arrays, shape (K,)."""
        pairs = zip(left, right, strict=True)
        return np.array([(x.astype(np.float64) * y).sum() for x, y in pairs])

    def angles(self, left: Sequence[NDFloat], right: Sequence[NDFloat]) -> tuple[NDFloat, NDFloat]:
        """Return norms of the left arrays, and cosines with the right ones, shape (K,)."""
        norms = self.norms(left)
        scales = norms * self.norms(right)
        return norms, self.dots(left, right) / np.where(scales > 0, scales, 1.0)

    def flatten_spectrum(
        self,
        mean: Sequence[NDFloat],
        value: Sequence[NDFloat],
        decays: Sequence[float] | NDFloat,
        iterations: int,
        rows: Sequence[NDFloat] | None = None,
        block: int | None = None,
    ) -> tuple[list[NDFloat], Sequence[NDFloat] | None]:
        """Return new arrays -P / |P|, from the orthogonal factor; see the base class."""
        flat, moments = [], None if rows is None else list(rows)
        for k, (m, v, decay) in enumerate(zip(mean, value, decays, strict=True)):
            factor = _factor(decay * m + (1.0 - decay) * v, iterations, block)
            if moments is not None and m.ndim > 1:
                squares = (factor**2).reshape(len(m), -1).mean(1)
                moments[k] = ROW_MEMORY * moments[k] + (1.0 - ROW_MEMORY) * squares
                roots = np.sqrt(np.maximum(moments[k], np.finfo(np.float32).tiny))
                factor = factor / roots.reshape(-1, *[1] * (m.ndim - 1))
            flat.append((-factor / (np.linalg.norm(factor) or 1.0)).astype(m.dtype))
        return flat, moments

    def _stored(self, array: NDFloat) -> NDFloat:
        return _rounded(array) if self.history == "bfloat16" else array


def _rounded(array: NDFloat) -> NDFloat:
    """Round each entry to the nearest bfloat16, ties to even, and return it in 32 bits."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    tie = (bits >> 16) & 1
    return ((bits + (0x7FFF + tie)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _factor(array: NDFloat, iterations: int, block: int | None) -> NDFloat:
    """Return the orthogonal factor O in 64 bits."""
    x = np.asarray(array, np.float64)
    if x.ndim < 2 or not x.any():
        return x
    x = x.reshape(len(x), -1)
    wide = x.T if len(x) > x.shape[1] else x
    _, size = split_rows(len(wide), block)
    pieces = [wide[k : k + size] for k in range(0, len(wide), size)]
    polar = _normalised_rows if size == 1 else partial(_polar, iterations=iterations)
    found = np.concatenate([polar(piece) for piece in pieces])
    return (found.T if len(x) > x.shape[1] else found).reshape(array.shape)


def _normalised_rows(x: NDFloat) -> NDFloat:
    """Scale a row to length one; scaled by its maximum first, since squares may underflow."""
    x = x / (abs(x).max() or 1.0)
    return np.asarray(x / (np.linalg.norm(x) or 1.0))


def _polar(x: NDFloat, iterations: int) -> NDFloat:
    """Return the orthogonal factor of a wide matrix in 64 bits."""
    if not x.any():
        return x
    x = x / abs(x).max()
    x = x / (CUSHION * np.sqrt(np.linalg.norm(x @ x.T)))
    for a, b, c in POLYNOMIALS[iterations]:
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x
