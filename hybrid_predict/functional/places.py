"""Which array library and device a call uses, and why."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, final

import numpy as np
import torch

from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors.arrays import beside, namespace

logger = logging.getLogger(__name__)

OPERATIONS = (
    "abs", "all", "any", "asarray", "astype", "concat", "exp", "eye", "full_like", "isfinite",
    "isnan", "log", "max", "maximum", "mean", "min", "minimum", "ones_like", "permute_dims",
    "reshape", "sqrt", "stack", "sum", "take", "where", "zeros", "zeros_like",
)  # fmt: skip
"""Functions of the array API standard that a library needs."""


_FLAT = "Name nested arrays by their paths, such as 'dense.kernel'."


@final
class Selection(NamedTuple):
    """What a call will compute with.

    Args:
        library: ``"torch"``, ``"jax"``, ``"numpy"``, or the name of another library.
        device: The device as the library writes it.
        reason: Why these.
    """

    library: str
    device: str
    reason: str


def select_backend(arrays: Mapping[str, Any] | None = None) -> Selection:
    """Say which array library and device a call will use, and why.

    Arrays are computed with where they are. Where their library lacks an operation of
    :data:`OPERATIONS`, the whole call is computed with NumPy, and one warning is logged.

    Args:
        arrays: Floating-point arrays by name; None asks what new arrays are best made with:
            accelerators of torch, then of JAX, else the CPU with torch.

    Raises:
        ConfigError: If they are no mapping of floating-point arrays of one library.
        MissingExtraError: If array-api-compat is needed and not installed.

    Example:
        >>> import numpy as np
        >>> select_backend({"weight": np.zeros((2, 2))}).library
        'numpy'
    """
    if arrays is None:
        return _present()
    xp = check_arrays("arrays", arrays)
    library, device = _name(xp), str(getattr(next(iter(arrays.values())), "device", "cpu"))
    if lacking := _lacking(xp):
        _warn_once(library, lacking)
        return Selection("numpy", "cpu", f"{library} has no {', '.join(lacking)}")
    return Selection(library, device, "the arrays are there")


def check_arrays(argument: str, arrays: Any) -> Any:
    """Check that arrays by name can be computed with, and give their library's functions.

    Args:
        argument: Its name, for the message.
        arrays: What the user gave.

    Raises:
        ConfigError: If it is no mapping of floating-point arrays of one library.
        MissingExtraError: If array-api-compat is needed and not installed.
    """
    if not isinstance(arrays, Mapping) or not arrays:
        got = arrays if isinstance(arrays, Mapping) else type(arrays).__name__
        raise ConfigError(argument, "a mapping of names to arrays, not empty", got)
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise ConfigError(argument, "names that are strings", name, _FLAT)
        if isinstance(array, (Mapping, list, tuple)):
            raise ConfigError(f"{argument}[{name!r}]", "an array", type(array).__name__, _FLAT)
    xp = namespace(*arrays.values())
    for name, array in arrays.items():
        if not (hasattr(array, "dtype") and xp.isdtype(array.dtype, "real floating")):
            kind = str(getattr(array, "dtype", type(array).__name__))
            remedy = "Leave arrays out that are not trained."
            raise ConfigError(f"{argument}[{name!r}]", "real floating-point numbers", kind, remedy)
    return xp


def computed_elsewhere(xp: Any) -> bool:
    """Whether arrays of a library go to NumPy and back, which is logged once."""
    if lacking := _lacking(xp):
        _warn_once(_name(xp), lacking)
    return bool(lacking)


def to_numpy(tree: Any) -> Any:
    """The same mapping with NumPy arrays; anything else stays."""
    if isinstance(tree, Mapping):
        return {name: to_numpy(value) for name, value in tree.items()}
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().numpy()
    return np.asarray(tree) if hasattr(tree, "dtype") else tree


def like(arrays: Mapping[str, Any], wanted: Mapping[str, Any], xp: Any) -> dict[str, Any]:
    """NumPy arrays as those of the library and on the devices of others of the same names."""
    return {
        name: xp.asarray(array, dtype=wanted[name].dtype, **beside([wanted[name]]))
        for name, array in arrays.items()
    }


def _lacking(xp: Any) -> tuple[str, ...]:
    return () if xp is np else tuple(name for name in OPERATIONS if not hasattr(xp, name))


@cache
def _warn_once(library: str, lacking: tuple[str, ...]) -> None:
    text = "%s has no %s: corrections and forecasts are computed with NumPy on the host."
    logger.warning(text, library, ", ".join(lacking))


def _name(xp: Any) -> str:
    parts = str(xp.__name__).split(".")
    return parts[-1] if parts[0] == "array_api_compat" else parts[0]


def _present() -> Selection:
    if torch.cuda.is_available():
        return Selection("torch", "cuda", "torch finds an accelerator")
    if torch.backends.mps.is_available():
        return Selection("torch", "mps", "torch finds an accelerator")
    if importlib.util.find_spec("jax") and importlib.util.find_spec("array_api_compat"):
        import jax

        if (kind := jax.default_backend()) != "cpu":
            return Selection("jax", kind, "JAX finds an accelerator, torch does not")
    return Selection("torch", "cpu", "no accelerator was found")
