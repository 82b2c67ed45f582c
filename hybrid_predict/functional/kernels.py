"""Arithmetic on arrays of NumPy or JAX; no array is changed, and no value read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from hybrid_predict.tensors import polynomials

_TINY = float(np.finfo(np.float32).tiny)


def array_library(*values: Any) -> Any:
    """Return the functions of NumPy or JAX, whichever fits these numbers and arrays."""
    if all(isinstance(value, (bool, int, float, np.ndarray, np.generic)) for value in values):
        return np
    import jax.numpy

    return jax.numpy


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `Plans` and arrays, compiled once for each plans if these are JAX's."""

    @wraps(function)
    def call(plans: Any, *arrays: Any) -> Any:
        if plans.library == "jax":
            return _jitted(function)(plans, *arrays)
        with np.errstate(all="ignore"):  # numbers that are not finite are masked
            return function(plans, *arrays)

    return call


@cache
def _jitted(function: Callable[..., Any]) -> Any:
    import jax

    return jax.jit(function, static_argnums=0)


def when(condition: Any, make: Callable[[], Any], otherwise: Any) -> Any:
    """Return ``make()`` if a 0-dim condition holds; while JAX traces it, the device decides."""
    if array_library(condition) is not np:
        import jax

        if isinstance(condition, jax.core.Tracer):
            return jax.lax.cond(condition, make, lambda: otherwise)
    return make() if condition else otherwise


def wide_dtype(array: Any) -> Any:
    """Return the dtype of an array in at least 32 bits."""
    return array_library(array).result_type(np.float32, array.dtype)


def wide(array: Any) -> Any:
    """Return an array in at least 32 bits, as do all functions here."""
    return array_library(array).asarray(array, dtype=wide_dtype(array))


def dot(left: Any, right: Any) -> Any:
    """Return the inner product of two arrays of one shape, 0-dim."""
    return (wide(left) * wide(right)).sum()


def norm(array: Any) -> Any:
    """Return the Frobenius norm, 0-dim."""
    return array_library(array).sqrt(dot(array, array))


def cosine(left: Any, right: Any) -> Any:
    """Return the cosine of the angle between two arrays, 0-dim; 0 if there is none."""
    value = dot(left, right) / positive(norm(left) * norm(right))
    xp = array_library(value)
    return xp.where(xp.isfinite(value), value, 0.0)


def average(mean: Any, value: Any, decay: Any) -> Any:
    """Return decay * mean + (1 - decay) * value; exact if both are equal."""
    return wide(mean) + (1.0 - decay) * (wide(value) - wide(mean))


def peak(array: Any) -> Any:
    """Return the largest magnitude; squares of what is divided by it fit in 32 bits."""
    largest = abs(array).max()
    return array_library(array).where(largest > 0, largest, 1.0)


def unit(array: Any) -> Any:
    """Scale an array to length one; zeros stay."""
    array = array / peak(array)
    return array / positive(norm(array))


def orthogonal(matrix: Any) -> Any:
    """Return about the orthogonal factor of a wide matrix, with singular values from 0.6 to 1.

    Those far below the largest stay below.
    """
    x = matrix / peak(matrix)
    gram = x @ x.T
    scale = polynomials.CUSHION * array_library(x).sqrt(positive(norm(gram)))
    return _inverse_root(gram / scale**2, polynomials.FACTOR) @ x / scale


def inverse_root(covariance: Any) -> Any:
    r"""Return about :math:`C^{-1/2}` of a covariance, but for its scale.

    Eigenvalues far below the largest get a smaller root than their own; the root of zero is a
    multiple of the identity.
    """
    square = covariance / positive(norm(covariance))
    size = array_library(square).sqrt(positive(norm(square @ square)))
    return _inverse_root(square / (polynomials.CUSHION * size), polynomials.ROOT)


def _inverse_root(square: Any, step: polynomials.Halley) -> Any:
    xp = array_library(square)
    identity = xp.eye(square.shape[0], dtype=square.dtype)
    return step.d * identity + step.e * xp.linalg.inv(identity + step.c * square)


def positive(number: Any) -> Any:
    """Return a number, or the smallest one above 0."""
    return array_library(number).maximum(number, _TINY)
