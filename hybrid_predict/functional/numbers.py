"""Arithmetic of the rules: on plain numbers in the engine, on arrays of NumPy and JAX elsewhere."""

from __future__ import annotations

import math
from typing import Any, TypeVar, final

import numpy as np

Tree = TypeVar("Tree")


@final
class _Plain:
    """Functions of plain numbers, with NumPy's names."""

    maximum, minimum = max, min
    exp, log, sqrt, floor = math.exp, math.log, math.sqrt, math.floor
    isfinite, isnan = math.isfinite, math.isnan

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no


def library(*values: Any) -> Any:
    """Return the functions that fit these values: those of plain numbers, NumPy, or JAX."""
    if all(isinstance(value, (int, float)) for value in values):
        return _Plain
    return array_library(*values)


def array_library(*values: Any) -> Any:
    """Return the functions of NumPy or JAX, whichever fits these numbers and arrays."""
    if all(isinstance(value, (int, float, np.ndarray, np.generic)) for value in values):
        return np
    import jax.numpy

    return jax.numpy


def select(condition: Any, new: Tree, old: Tree) -> Tree:
    """Return the first of two trees if a condition holds, else the second.

    Args:
        condition: A bool, or a 0-dim bool array, which is not read.
        new: Nested dicts, lists, tuples and named tuples of numbers or arrays, and None.
        old: A tree of the same form, whose types the result has.

    Example:
        >>> select(True, {"a": 1.0}, {"a": 0.0})
        {'a': 1.0}
    """
    if isinstance(condition, bool):
        return new if condition else old
    if isinstance(new, dict):
        return {name: select(condition, new[name], old[name]) for name in new}  # type: ignore[index, return-value]
    if isinstance(new, (list, tuple)):
        parts = [select(condition, a, b) for a, b in zip(new, old, strict=True)]  # type: ignore[call-overload]
        named = hasattr(new, "_fields")
        return type(new)(*parts) if named else type(new)(parts)
    if new is None:
        return new
    xp = library(condition, new, old)
    kept = xp.asarray(old)
    return xp.where(condition, xp.asarray(new, dtype=kept.dtype), kept)


def ratio(above: Any, below: Any) -> Any:
    """Return a quotient; 0 if the divisor is not above 0."""
    xp, positive = library(above, below), below > 0
    return xp.where(positive, above / xp.where(positive, below, 1.0), 0.0)


def clip(number: Any, least: float, most: float) -> Any:
    """Return the nearest number between two bounds."""
    xp = library(number)
    return xp.minimum(most, xp.maximum(least, number))


def within(number: Any, limit: Any) -> Any:
    """Return whether a number is finite and at most a limit; also for torch's 0-dim tensors."""
    return (abs(number) < math.inf) & (number <= limit)
