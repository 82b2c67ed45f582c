"""Counts the memory traffic of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from hybrid_predict.torch.cost import Watching

_ONLY_WRITTEN = ("copy_", "_foreach_copy_", "zero_", "fill_")
_UNMOVED = ("empty", "empty_like", "new_empty", "empty_strided", "_unsafe_view")
_SHAPED = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_full")


def traffic(run: Callable[[], object]) -> dict[str, int]:
    """Count the bytes that a function's operations read and write, as if no cache kept any of them.

    Returns:
        ``products``, the bytes of matrix products with each operand counted once, and ``others``,
        the bytes of all other operations. Views and allocations count zero.
    """
    totals = {"products": 0, "others": 0}

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        which = "products" if func._overloadpacket in flop_registry else "others"
        totals[which] += _moved(func, args, kwargs, result)

    with Watching(see):
        run()
    return totals


def _moved(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes that one operation reads and writes, from its schema."""
    name, schema = func._overloadpacket.__name__, func._schema
    given = list(zip(schema.arguments, args, strict=False))
    given += [(a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs]
    written = [a.alias_info is not None and a.alias_info.is_write for a, _ in given]
    if name in _UNMOVED or (func.is_view and not any(written)):
        return 0
    total = 0
    for (argument, value), writes in zip(given, written, strict=True):
        unread = name in _SHAPED or (writes and (argument.is_out or name in _ONLY_WRITTEN))
        total += (writes + (not unread)) * _bytes(value)
    fresh = all(r.alias_info is None for r in schema.returns)
    return total + (_bytes(result) if fresh else 0)


def _bytes(value: Any) -> int:
    """Bytes of all tensors in an argument or a result, at most the size of their storage."""
    if isinstance(value, Tensor):
        return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0
