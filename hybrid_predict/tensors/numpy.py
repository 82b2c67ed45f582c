"""The slow, plain reference that every other backend is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_predict.tensors.base import NEWTON_SCHULZ, ROW_MEMORY, AbstractBackend

NDFloat = NDArray[Any]


class NumpyBackend(AbstractBackend[NDFloat]):
    """Each kernel as its definition, functional, one array at a time."""

    name = "numpy"

    def zeros(self, like: Sequence[NDFloat], history: str | None = None) -> list[NDFloat]:
        """Zeros; bfloat16, which NumPy does not have, is its values in 32 bits."""
        narrow = (history or self.history) == "bfloat16"
        return [
            np.zeros(x.shape, np.float32 if narrow or x.dtype.itemsize < 4 else x.dtype)
            for x in like
        ]

    def constants(self, values: Sequence[float], like: Sequence[NDFloat]) -> NDFloat:
        """An array of these numbers."""
        return np.array(values, np.float32)

    def zero_rows(self, like: Sequence[NDFloat]) -> list[NDFloat]:
        """An empty second moment per row."""
        return [np.zeros(m, np.float32) for m, _ in self.matrices(like)]

    def copy(self, target: Sequence[NDFloat], source: Sequence[NDFloat]) -> list[NDFloat]:
        """Target := source, element by element."""
        return [y.astype(x.dtype) for x, y in zip(target, source, strict=True)]

    def difference(self, target: Sequence[NDFloat], other: Sequence[NDFloat]) -> list[NDFloat]:
        """Target := other - target, the displacement when target holds the weights before."""
        return [y - x for x, y in zip(target, other, strict=True)]

    def add_scaled(
        self, target: Sequence[NDFloat], other: Sequence[NDFloat], factors: Sequence[float]
    ) -> list[NDFloat]:
        """Target[k] := target[k] + factors[k] * other[k]."""
        triples = zip(target, other, factors, strict=True)
        return [(x + f * y).astype(x.dtype) for x, y, f in triples]

    def average(
        self, mean: Sequence[NDFloat], value: Sequence[NDFloat], decay: float
    ) -> list[NDFloat]:
        """Mean := decay * mean + (1 - decay) * value."""
        pairs = zip(mean, value, strict=True)
        return [self._stored(decay * m + (1.0 - decay) * v) for m, v in pairs]

    def norms(self, arrays: Sequence[NDFloat]) -> NDFloat:
        """Frobenius norm of each array, shape (K,)."""
        return np.array([np.sqrt((x.astype(np.float64) ** 2).sum()) for x in arrays])

    def distances(
        self, left: Sequence[NDFloat], right: Sequence[NDFloat], factors: Sequence[Any]
    ) -> NDFloat:
        """Frobenius norm of each left[k] - factors[k] * right[k], shape (K,)."""
        triples = zip(left, right, factors, strict=True)
        return self.norms([x.astype(np.float64) - f * y.astype(np.float64) for x, y, f in triples])

    def dots(self, left: Sequence[NDFloat], right: Sequence[NDFloat]) -> NDFloat:
        """Inner product of each pair of arrays, shape (K,)."""
        pairs = zip(left, right, strict=True)
        return np.array([(x.astype(np.float64) * y).sum() for x, y in pairs])

    def cosines(self, left: Sequence[NDFloat], right: Sequence[NDFloat]) -> NDFloat:
        """Cosine of the angle of each pair of arrays, shape (K,)."""
        scales = self.norms(left) * self.norms(right)
        return self.dots(left, right) / np.where(scales > 0, scales, 1.0)

    def flatten_spectrum(
        self,
        target: Sequence[NDFloat],
        mean: Sequence[NDFloat],
        value: Sequence[NDFloat],
        decays: Sequence[float] | NDFloat,
        lengths: NDFloat,
        iterations: int,
        rows: Sequence[NDFloat] | None = None,
    ) -> tuple[list[NDFloat], Sequence[NDFloat] | None]:
        """Target[k] := lengths[k] P / |P|, from the orthogonal factor; see the base."""
        flat, moments = [], None if rows is None else list(rows)
        columns = enumerate(zip(target, mean, value, decays, lengths, strict=True))
        for k, (x, m, v, decay, length) in columns:
            factor = _factor(decay * m + (1.0 - decay) * v, iterations)
            if moments is not None and x.ndim > 1:
                squares = (factor**2).reshape(len(x), -1).mean(1)
                moments[k] = ROW_MEMORY * moments[k] + (1.0 - ROW_MEMORY) * squares
                roots = np.sqrt(np.maximum(moments[k], np.finfo(np.float32).tiny))
                factor = factor / roots.reshape(-1, *[1] * (x.ndim - 1))
            scale = length / (np.linalg.norm(factor) or 1.0)
            flat.append(self._stored(scale * factor).astype(x.dtype))
        return flat, moments

    def _stored(self, array: NDFloat) -> NDFloat:
        return _rounded(array) if self.history == "bfloat16" else array


def _rounded(array: NDFloat) -> NDFloat:
    """The nearest bfloat16 of each entry, ties to even, in 32 bits."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    tie = (bits >> 16) & 1
    return ((bits + (0x7FFF + tie)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _factor(array: NDFloat, iterations: int) -> NDFloat:
    """O in 64 bits."""
    a, b, c = NEWTON_SCHULZ
    x = np.asarray(array, np.float64)
    x = x / (np.linalg.norm(x) or 1.0)
    if x.ndim < 2 or not x.any():
        return x
    x = x.reshape(len(x), -1)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x.reshape(array.shape)
