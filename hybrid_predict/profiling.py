"""Counts the floating point operations of one full step, outside the hot path."""

from __future__ import annotations

from typing import Any

from torch import nn

from hybrid_predict.distributed import is_tensor_parallel


class FlopProfile:
    """Counts between :meth:`start` and :meth:`stop`; operations torch does not know count zero."""

    def __init__(self) -> None:
        self._mode: Any = None

    def start(self, model: nn.Module) -> None:
        """Start counting, unless the model has parts that cannot be counted.

        Those are compiled parts, and tensor parallelism, where every rank would count all.
        """
        compiled = any(hasattr(module, "_orig_mod") for module in model.modules())
        if compiled or is_tensor_parallel(model):
            return
        self._mode = _counter()
        self._mode.__enter__()

    def stop(self) -> int | None:
        """Stop counting; the operations counted, None if counting was not under way."""
        mode, self._mode = self._mode, None
        if mode is None:
            return None
        mode.__exit__(None, None, None)
        return int(mode.total)


def _counter() -> Any:
    """A dispatch mode that adds up operations.

    Torch's own FlopCounterMode hooks modules as well, which breaks losses that differentiate inside
    the forward pass, such as those of physics-informed nets.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Counter(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            result = func(*args, **given)
            if (count := flop_registry.get(func._overloadpacket)) is not None:
                self.total += count(*args, **given, out_val=result)
            return result

    return Counter()
