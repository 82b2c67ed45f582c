"""Counts operations and memory traffic of one full step, outside the hot path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from hybrid_predict.distributed import is_tensor_parallel


class FlopProfile:
    """Counts between :meth:`start` and :meth:`stop`; operations torch does not know count zero."""

    def __init__(self) -> None:
        self._mode: Any = None
        self._total = 0

    def start(self, model: nn.Module) -> None:
        """Start counting, unless the model has parts that cannot be counted.

        Those are compiled parts, and tensor parallelism, where every rank would count all. Torch's
        own FlopCounterMode hooks modules as well, which breaks losses that differentiate inside
        the forward pass, such as those of physics-informed nets.
        """
        compiled = any(hasattr(module, "_orig_mod") for module in model.modules())
        if compiled or is_tensor_parallel(model):
            return
        from torch.utils.flop_counter import flop_registry

        def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
            if (count := flop_registry.get(func._overloadpacket)) is not None:
                self._total += count(*args, **kwargs, out_val=result)

        self._total = 0
        self._mode = _watching(see)
        self._mode.__enter__()

    def stop(self) -> int | None:
        """Stop counting; the operations counted, None if counting was not under way."""
        mode, self._mode = self._mode, None
        if mode is None:
            return None
        mode.__exit__(None, None, None)
        return int(self._total)


def traffic(run: Callable[[], object]) -> dict[str, int]:
    """Bytes that a function's operations read and write, were nothing kept in a cache between them.

    Args:
        run: Called once.

    Returns:
        ``products``, the bytes of matrix products, each operand counted once, and ``others``, those
        of all other operations; views and allocations count nothing.
    """
    from torch.utils.flop_counter import flop_registry

    found = {"products": 0, "others": 0}

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        which = "products" if func._overloadpacket in flop_registry else "others"
        found[which] += _moved(func, args, kwargs, result)

    with _watching(see):
        run()
    return found


def _watching(see: Callable[[Any, Any, Any, Any], None]) -> Any:
    """A dispatch mode that shows every operation, its arguments and its result."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            see(func, args, kwargs or {}, result)
            return result

    return Mode()


_ONLY_WRITTEN = ("copy_", "_foreach_copy_", "zero_", "fill_")
_UNMOVED = ("empty", "empty_like", "new_empty", "empty_strided", "_unsafe_view")
_SHAPED = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_full")


def _moved(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes that one operation reads and writes, by its schema."""
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
    """Those of the tensors in an argument or a result, at most all that their storage has."""
    if isinstance(value, Tensor):
        return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0
