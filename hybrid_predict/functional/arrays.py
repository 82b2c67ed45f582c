"""Which arrays a call may be given, and what it computes with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.errors import ConfigError
from hybrid_predict.functional.kernels import wide_dtype
from hybrid_predict.rules.numbers import array_library

_FLAT = "Name nested arrays by their paths, such as 'dense.kernel'."


@final
class Selection(NamedTuple):
    """What a call computes with.

    Args:
        library: ``"numpy"`` or ``"jax"``.
        device: The device as the library writes it.
        reason: Why these.
    """

    library: str
    device: str
    reason: str


def select_backend(arrays: Mapping[str, Any] | None = None) -> Selection:
    """Return the array library and device that a call uses, and why.

    Args:
        arrays: Floating-point arrays by name; they are computed with where they are. None asks what
            new arrays are best made with: JAX if it has an accelerator, else NumPy.

    Raises:
        ConfigError: If they are no mapping of floating-point arrays of NumPy or of JAX.

    Example:
        >>> import numpy as np
        >>> select_backend({"weight": np.zeros((2, 2))}).library
        'numpy'
    """
    if arrays is not None:
        xp, first = check_arrays("arrays", arrays), next(iter(arrays.values()))
        device = str(getattr(first, "device", "cpu"))
        return Selection("numpy" if xp is np else "jax", device, "the arrays are there")
    if find_spec("jax"):
        import jax

        if (kind := jax.default_backend()) != "cpu":
            return Selection("jax", kind, "JAX finds an accelerator")
    return Selection("numpy", "cpu", "no accelerator was found")


def check_arrays(argument: str, arrays: Any) -> Any:
    """Check arrays by name, and return their library's functions."""
    if not isinstance(arrays, Mapping) or not arrays:
        got = arrays if isinstance(arrays, Mapping) else type(arrays).__name__
        raise ConfigError(argument, "a mapping of names to arrays, not empty", got)
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise ConfigError(argument, "names that are strings", name, _FLAT)
        if isinstance(array, (Mapping, list, tuple)):
            raise ConfigError(f"{argument}[{name!r}]", "an array", type(array).__name__, _FLAT)
    xp = check_library(argument, list(arrays.values()))
    for name, array in arrays.items():
        if not xp.issubdtype(array.dtype, np.floating):
            remedy = "Leave arrays out that are not trained."
            expected = "real floating-point numbers"
            raise ConfigError(f"{argument}[{name!r}]", expected, str(array.dtype), remedy)
    return xp


def check_library(argument: str, arrays: list[Any]) -> Any:
    """Return the functions of the library that all these arrays are of."""
    jax = sys.modules.get("jax")
    kinds = ((np.ndarray, np.generic), *([jax.Array] if jax else []))
    counts = [sum(isinstance(array, kind) for array in arrays) for kind in kinds]
    if sum(counts) < len(arrays):
        remedy = "Use HybridEngine for torch; convert arrays of other libraries."
        got = sorted({f"{type(x).__module__}.{type(x).__name__}" for x in arrays})
        raise ConfigError(argument, "arrays of NumPy or JAX", ", ".join(got), remedy)
    if max(counts) < len(arrays):
        raise ConfigError(argument, "arrays of one library", "NumPy and JAX", "Convert them.")
    return array_library(*arrays)


def numbers_by_name(given: Any, arrays: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Return a 0-dim array of at least 32 bits for every array."""
    if not isinstance(given, Mapping):
        given = dict.fromkeys(arrays, given)
    if missing := sorted(arrays.keys() - given.keys()):
        raise ConfigError(argument, "a number for every name", f"none of {missing}")
    return {name: number(given[name], array, argument) for name, array in arrays.items()}


def number(given: Any, like: Any, argument: str) -> Any:
    """Return a number as a 0-dim array, of the library and at least the bits of another array."""
    if not (isinstance(given, (int, float)) or getattr(given, "shape", None) == ()):
        got = getattr(given, "shape", type(given).__name__)
        raise ConfigError(argument, "a number or a 0-dim array", got)
    return array_library(like).asarray(given, dtype=wide_dtype(like))
