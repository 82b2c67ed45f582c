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
        from torch.utils.flop_counter import FlopCounterMode

        self._mode = FlopCounterMode(display=False)
        self._mode.__enter__()

    def stop(self) -> int | None:
        """Stop counting; the operations counted, None if counting was not under way."""
        mode, self._mode = self._mode, None
        if mode is None:
            return None
        mode.__exit__(None, None, None)
        return int(mode.get_total_flops())
