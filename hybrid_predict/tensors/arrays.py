"""The plain reference of every kernel, once for all array libraries; others are tested against it.

It is written against the array API standard (https://data-apis.org/array-api), changes no array,
and looks at no value, so that ``jax.jit`` can trace it. Only conditions are looked at where nothing
is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from hybrid_predict.errors import ConfigError, MissingExtraError
from hybrid_predict.tensors.base import ROW_MEMORY, AbstractBackend
from hybrid_predict.tensors.polynomials import (
    CUSHION,
    POLYNOMIALS,
    ROOT_FLOOR,
    ROOT_POLYNOMIALS,
    split_rows,
)

_TINY = float(np.finfo(np.float32).tiny)

_ON_NUMPY = (np.ndarray, np.generic)


def namespace(*arrays: Any) -> Any:
    """The functions of the library that these arrays are of; NumPy's for none.

    Raises:
        ConfigError: If they are of several libraries, or of one that is not known.
        MissingExtraError: If array-api-compat is needed and not installed.
    """
    if all(isinstance(x, _ON_NUMPY) for x in arrays) and hasattr(np, "matrix_transpose"):
        return np
    try:
        import array_api_compat
    except ModuleNotFoundError as error:
        raise MissingExtraError("hybrid_predict.functional", "functional") from error
    try:
        found = {array_api_compat.array_namespace(x) for x in arrays}
    except TypeError as error:
        kinds = sorted({f"{type(x).__module__}.{type(x).__name__}" for x in arrays})
        expected, remedy = "arrays of a library with the array API", "Use torch, JAX or NumPy."
        raise ConfigError("arrays", expected, ", ".join(kinds), remedy) from error
    if len(found) > 1:
        names = ", ".join(sorted(xp.__name__ for xp in found))
        raise ConfigError("arrays", "arrays of one library", names, "Convert them to one.")
    return found.pop()


def wide_dtype(*arrays: Any) -> Any:
    """The widest type of floating-point arrays, of at least 32 bits; 32 bits for none."""
    xp = namespace(*arrays)
    double = any(x.dtype == xp.float64 for x in arrays)
    return xp.float64 if double else xp.float32


def cast(array: Any, dtype: Any) -> Any:
    """The array in another type; itself if it is of that type."""
    if isinstance(array, np.generic):
        return np.asarray(array, dtype=dtype)
    return namespace(array).astype(array, dtype, copy=False)


def beside(like: Sequence[Any]) -> dict[str, Any]:
    """Where new arrays belong, as arguments; jitted JAX decides by itself, and NumPy has no choice.

    Args:
        like: Arrays of one library.
    """
    device = getattr(like[0], "device", None) if like else None
    return {"device": device} if type(device).__module__ in ("torch", "cupy") else {}


@final
class ArrayBackend(AbstractBackend[Any]):
    """Each kernel as its definition, one array at a time, for arrays of any library."""

    name = "arrays"

    def zeros(self, like: Sequence[Any], history: str | None = None) -> list[Any]:
        """Zeros; bfloat16, where a library does not have it, is its values in 32 bits."""
        if (history or self.history) == "bfloat16":
            kind = getattr(namespace(*like), "bfloat16", None)
            narrow = kind if kind is not None else namespace(*like).float32
            return [namespace(x).zeros_like(x, dtype=narrow) for x in like]
        return [namespace(x).zeros_like(x, dtype=wide_dtype(x)) for x in like]

    def constants(self, values: Sequence[float], like: Sequence[Any]) -> Any:
        """An array of these numbers, in 64 bits beside arrays of 64 bits."""
        xp = namespace(*like)
        return xp.asarray(list(values), dtype=wide_dtype(*like), **beside(like))

    def zero_rows(self, like: Sequence[Any]) -> list[Any]:
        """An empty second moment per row, in 64 bits for arrays of 64 bits."""
        return [
            namespace(x).zeros(m, dtype=wide_dtype(x), **beside([x]))
            for x, (m, _) in zip(like, self.matrices(like), strict=True)
        ]

    def copy(self, target: Sequence[Any], source: Sequence[Any]) -> list[Any]:
        """Target := source, element by element."""
        pairs = zip(target, source, strict=True)
        return [namespace(y).astype(y, x.dtype, copy=True) for x, y in pairs]

    def add_scaled(
        self, target: Sequence[Any], other: Sequence[Any], factors: Sequence[Any]
    ) -> list[Any]:
        """Target[k] := target[k] + factors[k] * other[k]."""
        triples = zip(target, other, factors, strict=True)
        return [cast(_wide(x) + f * _wide(y), x.dtype) for x, y, f in triples]

    def average(self, mean: Sequence[Any], value: Sequence[Any], decay: Any) -> list[Any]:
        """Mean := decay * mean + (1 - decay) * value, for a number or a 0-dim array."""
        return [self._averaged(m, v, decay) for m, v in zip(mean, value, strict=True)]

    def norms(self, arrays: Sequence[Any]) -> Any:
        """Frobenius norm of each array, shape (K,)."""
        return _stack([_norm(_wide(x)) for x in arrays])

    def distances(self, left: Sequence[Any], right: Sequence[Any], factors: Sequence[Any]) -> Any:
        """Frobenius norm of each left[k] - factors[k] * right[k], shape (K,)."""
        triples = zip(left, right, factors, strict=True)
        return _stack([_norm(_wide(x) - f * _wide(y)) for x, y, f in triples])

    def dots(self, left: Sequence[Any], right: Sequence[Any]) -> Any:
        """Inner product of each pair of arrays, shape (K,)."""
        pairs = zip(left, right, strict=True)
        return _stack([namespace(x).sum(_wide(x) * _wide(y)) for x, y in pairs])

    def angles(self, left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, Any]:
        """Norms of the left arrays, and cosines of the angles with the right ones, shape (K,)."""
        norms = self.norms(left)
        xp, scales = namespace(norms), norms * self.norms(right)
        cosines = self.dots(left, right) / xp.where(scales > _TINY, scales, _TINY)
        return norms, xp.where(xp.isfinite(cosines), cosines, 0.0)

    def flatten_spectrum(
        self,
        mean: Sequence[Any],
        value: Sequence[Any],
        decays: Any,
        iterations: int,
        rows: Sequence[Any] | None = None,
        block: int | None = None,
        roots: tuple[Sequence[Any], Sequence[Any]] | None = None,
    ) -> tuple[list[Any], Sequence[Any] | None]:
        """New arrays -P / |P|, from the orthogonal factor; see the base."""
        flat, moments = [], None if rows is None else list(rows)
        for k, (m, v) in enumerate(zip(mean, value, strict=True)):
            xp = namespace(m)
            matrix = xp.reshape(_blend(_wide(m), _wide(v), decays[k]), self.matrices([m])[0])
            if m.ndim > 1:
                sides = () if roots is None else (roots[0][k], roots[1][k])
                matrix = _orthogonal(_whitened(matrix, *sides), iterations, block)
                if moments is not None:
                    squares = xp.mean(matrix * matrix, axis=1)
                    moments[k] = cast(_blend(moments[k], squares, ROW_MEMORY), moments[k].dtype)
                    matrix = matrix / xp.sqrt(_at_least(moments[k]))[:, None]
            flat.append(cast(xp.reshape(-_unit(matrix), m.shape), wide_dtype(m)))
        return flat, moments

    def diagonals(
        self, like: Sequence[Any], longest: int, value: float
    ) -> tuple[list[Any], list[Any]]:
        """Flat diagonal matrices for both sides; empty arrays for long sides and vectors."""
        found: tuple[list[Any], list[Any]] = ([], [])
        for x, sides in zip(like, self.matrices(like), strict=True):
            xp = namespace(x)
            for side, matrices in zip(sides, found, strict=True):
                size = side if x.ndim > 1 and side <= longest else 0
                square = value * xp.eye(size, dtype=wide_dtype(x), **beside([x]))
                (stored,) = self.zeros([xp.reshape(square, (-1,))])
                matrices.append(cast(xp.reshape(square, (-1,)), stored.dtype))
        return found

    def covariances(
        self,
        left: Sequence[Any],
        right: Sequence[Any],
        value: Sequence[Any],
        decay: Any,
        due: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """L and R, moved towards the covariances of values of unit length."""
        rows = zip(left, right, value, due, strict=True)
        pairs = [_when(now, partial(self._moved, own, v, decay), own) for *own, v, now in rows]
        return [own for own, _ in pairs], [other for _, other in pairs]

    def _moved(self, sides: Sequence[Any], value: Any, decay: Any) -> list[Any]:
        """L and R of one array."""
        matrix, found = _unit(namespace(value).reshape(_wide(value), self.matrices([value])[0])), []
        for covariance, x in zip(sides, (matrix, _turned(matrix)), strict=True):
            if covariance.shape[0]:
                square = namespace(value).reshape(x @ _turned(x), (-1,))
                covariance = self._averaged(covariance, square, decay)
            found.append(covariance)
        return found

    def inverse_roots(
        self, covariances: Sequence[Any], roots: Sequence[Any], due: Sequence[Any]
    ) -> list[Any]:
        """C^(-1/4), but for its scale: the square root B p(B) of the inverse square root B."""
        rows = zip(covariances, roots, due, strict=True)
        return [_when(now, partial(self._root, x), root) for x, root, now in rows]

    def _root(self, covariance: Any) -> Any:
        if not covariance.shape[0]:
            return covariance
        square, xp = _wide(_square(covariance)), namespace(covariance)
        if self.history == "bfloat16":
            identity = xp.eye(square.shape[0], dtype=square.dtype, **beside([square]))
            square = square / _at_least(_norm(square)) + ROOT_FLOOR * identity
        first, second = ROOT_POLYNOMIALS
        root = _shrunk(_polynomial(_shrunk(square), first))
        return self._stored(xp.reshape(root @ _polynomial(root, second), (-1,)), covariance)

    def counters(self, like: Sequence[Any]) -> list[Any]:
        """A 0-dim integer 0 for each array, on its device."""
        return [namespace(x).asarray(0, dtype=namespace(x).int32, **beside([x])) for x in like]

    def _averaged(self, mean: Any, value: Any, decay: Any) -> Any:
        return self._stored(_blend(_wide(mean), _wide(value), decay), mean)

    def _stored(self, found: Any, like: Any) -> Any:
        """Rounded to the type in which averages are stored."""
        if self.history == "bfloat16" and not hasattr(namespace(like), "bfloat16"):
            found = _rounded(found)
        return cast(found, like.dtype)


def _wide(array: Any) -> Any:
    """The array in at least 32 bits."""
    return cast(array, wide_dtype(array))


def _stack(numbers: list[Any]) -> Any:
    """0-dim arrays as one, in the widest of their types; NumPy's of none."""
    xp, dtype = namespace(*numbers), wide_dtype(*numbers)
    each = [cast(xp.asarray(n), dtype) for n in numbers]
    return xp.stack(each) if each else xp.zeros(0, dtype=dtype)


def _blend(mean: Any, value: Any, decay: Any) -> Any:
    """The mean itself where both are equal."""
    return mean + (1.0 - decay) * (value - mean)


def _norm(array: Any) -> Any:
    xp = namespace(array)
    return xp.sqrt(xp.sum(array * array))


def _at_least(array: Any) -> Any:
    return namespace(array).where(array > _TINY, array, _TINY)


def _peak(array: Any, axis: int | None = None) -> Any:
    """The largest magnitude, so that squares of what is divided by it are in range."""
    xp = namespace(array)
    peak = xp.max(xp.abs(array), axis=axis, keepdims=axis is not None)
    return xp.where(peak > 0, peak, 1.0)


def _unit(matrix: Any) -> Any:
    """A matrix with length one; zeros stay."""
    if 0 in matrix.shape:
        return matrix
    matrix = matrix / _peak(matrix)
    return matrix / _at_least(_norm(matrix))


def _orthogonal(matrix: Any, iterations: int, block: int | None) -> Any:
    """The orthogonal factor O of a matrix, in parts of its shorter side."""
    if 0 in matrix.shape:
        return matrix
    xp, tall = namespace(matrix), matrix.shape[0] > matrix.shape[1]
    x = _turned(matrix) if tall else matrix
    _, size = split_rows(x.shape[0], block)
    if size == 1:
        x = x / _peak(x, axis=1)
        x = x / _at_least(xp.sqrt(xp.sum(x * x, axis=1, keepdims=True)))
    else:
        pieces = [x[k : k + size, :] for k in range(0, x.shape[0], size)]
        x = xp.concat(list(map(partial(_polar, iterations=iterations), pieces)), axis=0)
    return _turned(x) if tall else x


def _polar(x: Any, iterations: int) -> Any:
    """The orthogonal factor of a wide matrix."""
    xp = namespace(x)
    x = x / _peak(x)
    gram = x @ _turned(x)
    x = x / (CUSHION * xp.sqrt(_at_least(_norm(gram))))
    for a, b, c in POLYNOMIALS[iterations]:
        gram = x @ _turned(x)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


def _turned(matrix: Any) -> Any:
    return namespace(matrix).permute_dims(matrix, (1, 0))


def _square(flat: Any) -> Any:
    side = math.isqrt(flat.shape[0])
    return namespace(flat).reshape(flat, (side, side))


def _whitened(matrix: Any, left: Any = None, right: Any = None) -> Any:
    """A matrix between its roots, in its own type."""
    if left is not None and left.shape[0]:
        matrix = cast(_square(left), matrix.dtype) @ matrix
    if right is not None and right.shape[0]:
        matrix = matrix @ cast(_square(right), matrix.dtype)
    return matrix


def _shrunk(matrix: Any) -> Any:
    """A symmetric matrix with its largest eigenvalue just below one."""
    matrix = matrix / _at_least(_norm(matrix))
    return matrix / (CUSHION * namespace(matrix).sqrt(_at_least(_norm(matrix @ matrix))))


def _polynomial(gram: Any, iterations: int) -> Any:
    """What the polynomials of X multiply X with, from its Gram matrix."""
    xp, factor = namespace(gram), None
    identity = xp.eye(gram.shape[0], dtype=gram.dtype, **beside([gram]))
    for k, (a, b, c) in enumerate(POLYNOMIALS[iterations]):
        step = a * identity + b * gram + c * (gram @ gram)
        factor = step if factor is None else step @ factor
        if k + 1 < iterations:
            gram = step @ gram @ step
    return factor


def _when(condition: Any, make: Callable[[], Any], otherwise: Any) -> Any:
    """``make()`` if a 0-dim condition holds; where JAX traces it, it decides on the device."""
    if "jax" in type(condition).__module__:
        import jax

        if isinstance(condition, jax.core.Tracer):
            return jax.lax.cond(condition, make, lambda: otherwise)
    return make() if bool(condition) else otherwise


def _rounded(array: Any) -> Any:
    """The nearest bfloat16 of each entry, ties to even, in 32 bits."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    tie = (bits >> 16) & 1
    return ((bits + (0x7FFF + tie)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
