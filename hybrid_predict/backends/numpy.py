"""The slow, plain reference that every other backend is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_predict.backends.base import NEWTON_SCHULZ, AbstractBackend

NDFloat = NDArray[Any]


class NumpyBackend(AbstractBackend[NDFloat]):
    """Each kernel as its definition, functional, one array at a time."""

    name = "numpy"

    def zeros(self, like: Sequence[NDFloat]) -> list[NDFloat]:
        """Zero arrays of the same shapes; half-precision inputs give 32-bit history."""
        return [np.zeros(x.shape, np.float32 if x.dtype.itemsize < 4 else x.dtype) for x in like]

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
        return [decay * m + (1.0 - decay) * v for m, v in zip(mean, value, strict=True)]

    def norms(self, arrays: Sequence[NDFloat]) -> NDFloat:
        """Frobenius norm of each array, shape (K,)."""
        return np.array([np.sqrt((x.astype(np.float64) ** 2).sum()) for x in arrays])

    def dots(self, left: Sequence[NDFloat], right: Sequence[NDFloat]) -> NDFloat:
        """Inner product of each pair of arrays, shape (K,)."""
        pairs = zip(left, right, strict=True)
        return np.array([(x.astype(np.float64) * y).sum() for x, y in pairs])

    def rescale(self, target: Sequence[NDFloat], lengths: NDFloat) -> list[NDFloat]:
        """Target[k] := lengths[k] * target[k] / |target[k]|; see the base."""
        norms = [np.linalg.norm(x.astype(np.float64)) for x in target]
        triples = zip(target, lengths, norms, strict=True)
        return [(x * (float(s) / (n or 1.0))).astype(x.dtype) for x, s, n in triples]

    def flatten_spectrum(
        self, target: Sequence[NDFloat], source: Sequence[NDFloat], iterations: int
    ) -> list[NDFloat]:
        """Target[k] := |M| O / |O| with O the orthogonal factor of M = source[k]; see the base."""
        return [_flatten(x, iterations) for x in source]


def _flatten(array: NDFloat, iterations: int) -> NDFloat:
    a, b, c = NEWTON_SCHULZ
    length = np.linalg.norm(array)
    if length == 0 or array.ndim < 2:
        return array.copy()
    x = array.reshape(array.shape[0], -1).astype(np.float64) / length
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return (x * length / np.linalg.norm(x)).reshape(array.shape).astype(array.dtype)
