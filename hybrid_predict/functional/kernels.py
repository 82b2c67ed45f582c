"""Array kernels of corrections and forecasts, on arrays of NumPy or JAX.

They change no array, and read no value while JAX traces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from hybrid_predict.rules.numbers import array_library
from hybrid_predict.tensors.polynomials import (
    CUSHION,
    FACTOR,
    MOST_ENERGY,
    ROOT,
    ROOT_FLOOR,
    Halley,
)

Numbers = TypeVar("Numbers", bound=Any)

_TINY = float(np.finfo(np.float32).tiny)


def wide_dtype(*arrays: Any) -> Any:
    """Return the widest dtype of floating-point arrays, of at least 32 bits."""
    return array_library(*arrays).result_type(np.float32, *(array.dtype for array in arrays))


def wide(array: Any) -> Any:
    """Return an array in at least 32 bits, as do all functions here but for stored averages."""
    return array_library(array).asarray(array, dtype=wide_dtype(array))


def dot(left: Any, right: Any) -> Any:
    """Return the inner product of two arrays of one shape, 0-dim."""
    return (wide(left) * wide(right)).sum()


def norm(array: Any) -> Any:
    """Return the Frobenius norm, 0-dim."""
    return array_library(array).sqrt(dot(array, array))


def cosine(left: Any, right: Any) -> Any:
    """Return the cosine of the angle between two arrays, 0-dim; 0 if there is none."""
    value = dot(left, right) / _positive(norm(left) * norm(right))
    xp = array_library(value)
    return xp.where(xp.isfinite(value), value, 0.0)


def total(kind: type[Numbers], items: Iterable[Numbers]) -> Numbers:
    """Add named tuples of numbers; zeros if there are none."""
    zero = (0.0,) * len(kind._fields)
    return kind(*map(sum, zip(zero, *items, strict=True)))


def zero_unless(condition: Any, numbers: Numbers) -> Numbers:
    """Return a named tuple of numbers, or zeros if a 0-dim condition does not hold."""
    xp = array_library(condition)
    return type(numbers)(*(xp.where(condition, number, 0.0) for number in numbers))


def largest(numbers: Iterable[Any]) -> Any:
    """Return the largest size of 0-dim arrays."""
    each = list(numbers)
    return abs(array_library(*each).stack(each)).max()


def when(condition: Any, make: Callable[[], Any], otherwise: Any) -> Any:
    """Return ``make()`` if a 0-dim condition holds; while JAX traces it, the device decides."""
    if array_library(condition) is not np:
        import jax

        if isinstance(condition, jax.core.Tracer):
            return jax.lax.cond(condition, make, lambda: otherwise)
    return make() if condition else otherwise


def average_dtype(like: Any, history: str) -> Any:
    """Return the dtype of stored averages; NumPy keeps values of bfloat16 in 32 bits."""
    if history == "bfloat16":
        return getattr(array_library(like), "bfloat16", np.float32)
    return wide_dtype(like)


def zeros(arrays: Mapping[str, Any], history: str) -> dict[str, Any]:
    """Return averages of nothing, by name; see :func:`average_dtype`."""
    return {
        name: array_library(x).zeros_like(x, dtype=average_dtype(x, history))
        for name, x in arrays.items()
    }


def average(mean: Any, value: Any, decay: Any, history: str) -> Any:
    """Return decay * mean + (1 - decay) * value, rounded to the dtype of the mean."""
    return _stored(blend(mean, value, decay), mean, history)


def blend(mean: Any, value: Any, decay: Any) -> Any:
    """Return decay * mean + (1 - decay) * value; exact if both are equal."""
    return wide(mean) + (1.0 - decay) * (wide(value) - wide(mean))


def _stored(values: Any, like: Any, history: str) -> Any:
    """Round values to the dtype in which averages are stored."""
    if history == "bfloat16" and array_library(like) is np:
        bits = np.asarray(values, np.float32).view(np.uint32)
        to_even = 0x7FFF + ((bits >> 16) & 1)
        values = ((bits + to_even) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return values.astype(like.dtype)


def peak(array: Any, axis: int | None = None) -> Any:
    """Return the largest magnitude; squares of what is divided by it fit in 32 bits."""
    xp = array_library(array)
    largest = xp.abs(array).max(axis=axis, keepdims=axis is not None)
    return xp.where(largest > 0, largest, 1.0)


def unit(array: Any) -> Any:
    """Scale an array to length one; zeros stay."""
    array = array / peak(array)
    return array / _positive(norm(array))


def energies(matrix: Any) -> Any:
    """Return the shares of a matrix's squares in its rows, then in its columns."""
    xp = array_library(matrix)
    squares = matrix * matrix
    return xp.concatenate((squares.sum(1), squares.sum(0))) / _positive(squares.sum())


def scales(energies: Any, rows: int) -> tuple[Any, Any]:
    """Return the scales of rows and columns; see `tensors.matrices.flatten`."""
    sides = (energies[:rows], energies[rows:])
    ratios = (side / _positive(side.mean()) for side in sides)
    first, second = (ratio.clip(1.0 / MOST_ENERGY, MOST_ENERGY) ** -0.25 for ratio in ratios)
    return first, second


def levelled(matrix: Any, moments: Any) -> Any:
    """Divide each row by the root of its second moment, shape (m,), and scale to length one."""
    return unit(matrix / array_library(matrix).sqrt(_positive(moments))[:, None])


def orthogonal(matrix: Any) -> Any:
    """Return about the orthogonal factor of a wide matrix, with singular values from 0.6 to 1.

    Those far below the largest stay below.
    """
    x = matrix / peak(matrix)
    gram = x @ x.T
    scale = CUSHION * array_library(x).sqrt(_positive(norm(gram)))
    return _inverse_root(gram / scale**2, FACTOR) @ x / scale


def inverse_root(covariance: Any, history: str) -> Any:
    r"""Return about :math:`C^{-1/2}` of a covariance, but for its scale.

    Eigenvalues far below the largest get a smaller root than their own; the root of zero is a
    multiple of the identity. Covariances in 16 bits are not quite positive, so
    :math:`2^{-7} \|C\|_F` is added to their diagonals first.
    """
    square = wide(covariance)
    square = square / _positive(norm(square))
    xp = array_library(square)
    if history == "bfloat16":
        square = square + ROOT_FLOOR * xp.eye(square.shape[0], dtype=square.dtype)
    square = square / (CUSHION * xp.sqrt(_positive(norm(square @ square))))
    return _stored(_inverse_root(square, ROOT), covariance, history)


def _inverse_root(square: Any, step: Halley) -> Any:
    """About the inverse square root of a positive matrix with eigenvalues up to one."""
    xp = array_library(square)
    identity = xp.eye(square.shape[0], dtype=square.dtype)
    return step.d * identity + step.e * xp.linalg.inv(identity + step.c * square)


def _positive(number: Any) -> Any:
    return array_library(number).maximum(number, _TINY)
