"""Which arrays and numbers a call may be given, and what it computes with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.errors import ConfigError
from hybrid_predict.functional.kernels import array_library

_FLAT = "Name nested arrays by their paths, such as 'dense.kernel'."


@final
class Selection(NamedTuple):
    """What a call computes with: ``"numpy"`` or ``"jax"``, the device, and why."""

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
        check_arrays(arrays=arrays)
        first = next(iter(arrays.values()))
        library = "numpy" if array_library(first) is np else "jax"
        return Selection(library, str(getattr(first, "device", "cpu")), "the arrays are there")
    if find_spec("jax"):
        import jax

        if (kind := jax.default_backend()) != "cpu":
            return Selection("jax", kind, "JAX finds an accelerator")
    return Selection("numpy", "cpu", "no accelerator was found")


def check_arrays(**trees: Any) -> None:
    """Check that arguments are floating-point arrays by name, all of one library, with values."""
    for argument, arrays in trees.items():
        if not isinstance(arrays, Mapping) or not arrays:
            got = arrays if isinstance(arrays, Mapping) else type(arrays).__name__
            raise ConfigError(argument, "a mapping of names to arrays, not empty", got)
        for name, array in arrays.items():
            if not isinstance(name, str):
                raise ConfigError(argument, "names that are strings", name, _FLAT)
            _check_array(f"{argument}[{name!r}]", array)
    if len({isinstance(x, _NUMPY) for arrays in trees.values() for x in arrays.values()}) > 1:
        argument = " and ".join(trees)
        raise ConfigError(argument, "arrays of one library", "NumPy and JAX", "Convert them.")


_NUMPY: Any = (np.ndarray, np.generic)


def _check_array(argument: str, array: Any) -> None:
    if isinstance(array, (Mapping, list, tuple)):
        raise ConfigError(argument, "an array", type(array).__name__, _FLAT)
    jax = sys.modules.get("jax")
    known: Any = (*_NUMPY, jax.Array) if jax else _NUMPY
    if not isinstance(array, known):
        remedy = "Use HybridEngine for torch; convert arrays of other libraries."
        got = f"{type(array).__module__}.{type(array).__name__}"
        raise ConfigError(argument, "arrays of NumPy or JAX", got, remedy)
    if jax and isinstance(array, jax.core.Tracer):
        remedy = "Call it outside of jax.jit: it compiles what it computes."
        raise ConfigError(argument, "an array with values", "one that JAX traces", remedy)
    if not array_library(array).issubdtype(array.dtype, np.floating):
        remedy = "Leave arrays out that are not trained."
        raise ConfigError(argument, "real floating-point numbers", str(array.dtype), remedy)


def numbers_by_name(argument: str, given: Any, arrays: Mapping[str, Any]) -> dict[str, float]:
    """Return a number for every array."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(arrays, number(argument, given))
    if missing := sorted(arrays.keys() - given.keys()):
        raise ConfigError(argument, "a number for every name", f"none of {missing}")
    return {name: number(argument, given[name]) for name in arrays}


def number(argument: str, given: Any) -> float:
    """Return a number, or the value of a 0-dim array."""
    if not (isinstance(given, (int, float)) or getattr(given, "shape", None) == ()):
        got = getattr(given, "shape", type(given).__name__)
        raise ConfigError(argument, "a number or a 0-dim array", got)
    return float(given)
