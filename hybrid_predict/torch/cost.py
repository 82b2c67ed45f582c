"""Counts the floating point operations of a full step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor, nn

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.torch import ranks, shards

_RECURRENT = {
    "aten::mkldnn_rnn_layer": 1,
    "aten::mkldnn_rnn_layer_backward": 2,
    "aten::_cudnn_rnn": 1,
    "aten::_cudnn_rnn_backward": 2,
}
"""Number of passes in each call of a fused recurrent layer; torch has no formula for these."""


@final
class OperationCounter:
    """Counts the operations of one plain full step, and what correcting it adds.

    Operations without a formula in torch count zero.
    """

    def __init__(self, ledger: SavingsLedger) -> None:
        self._ledger = ledger
        self._mode: Any = None
        self._total = self._added = 0
        self._started = self._failed = False

    def start(self, model: nn.Module) -> None:
        """Count the next full step, if it is the first one and all of it can be counted.

        Models with compiled parts are not counted, and neither are models with tensor parallelism,
        where every rank would count the full layers. In compiled functions outside the model,
        operations that the compiler has fused count zero. Torch's own ``FlopCounterMode`` is not
        used, because it also hooks modules; this breaks losses that differentiate inside the
        forward pass, as in physics-informed networks.
        """
        tried, self._started = self._started, True
        if tried or self._ledger.flops_per_step is not None or shards.is_tensor_parallel(model):
            return
        if not _compiled(model):
            self._enter()

    @property
    def counting(self) -> bool:
        """Whether a full step is being counted."""
        return self._mode is not None

    @contextmanager
    def correcting(self) -> Iterator[None]:
        """Count the operations inside the block as those of corrected updates."""
        if self._mode is None:
            yield
            return
        before = self._total
        try:
            yield
        finally:
            self._added += self._total - before

    def stop(self) -> bool:
        """Stop counting; return whether a full step was being counted."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)
        return mode is not None

    def reset(self) -> None:
        """Discard the count of an unfinished full step, and count the next one."""
        if self.stop():
            self._total = self._added = 0
            self._started = False

    def report(self) -> bool:
        """Write the operations counted so far to the ledger; every rank has to call it.

        Returns:
            Whether anything was counted.
        """
        operations = ranks.total(_FAILED if self._failed else self._total - self._added)
        if operations > 0:
            self._ledger.flops_per_step = operations
        return operations > 0

    def end_step(self) -> bool:
        """Write the counts of a finished full step to the ledger; return whether there were any."""
        if not (self.stop() and self.report()):
            return False
        # Every rank does the same work, so nothing has to be reduced.
        self._ledger.flops_per_correction = self._added * ranks.size()
        return True

    def _enter(self) -> None:
        from torch.utils.flop_counter import flop_registry

        def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
            if self._failed:
                return
            try:
                operation = func._overloadpacket
                if (count := flop_registry.get(operation)) is not None:
                    self._total += count(*args, **kwargs, out_val=result)
                elif (passes := _RECURRENT.get(operation._qualified_op_name)) is not None:
                    self._total += passes * _recurrent(args)
            except Exception:  # a formula that fails must not end the user's forward pass
                self._failed = True

        self._mode = watching(see)
        self._mode.__enter__()


def _recurrent(args: Sequence[Any]) -> int:
    """Return the operations of the matrix products in one pass through a recurrent layer."""
    flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
    tensors = [x for x in flat if isinstance(x, Tensor)]
    positions = tensors[0].numel() // max(1, tensors[0].shape[-1])
    return 2 * positions * sum(x.numel() for x in tensors[1:] if x.dim() == 2)


def watching(see: Callable[[Any, Any, Any, Any], None]) -> Any:
    """Return a dispatch mode that calls ``see`` with each operation, its arguments and result."""
    from torch.utils._python_dispatch import TorchDispatchMode

    @final
    class Mode(TorchDispatchMode):
        # Without it, operators such as torch.cond raise.
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Let torch.compile work inside the mode; otherwise it never compiles the function."""
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            see(func, args, kwargs or {}, result)
            return result

    return Mode()


def _compiled(model: nn.Module) -> bool:
    """Return whether the model may have compiled parts, whose operations are not all seen."""
    from torch.utils._python_dispatch import TorchDispatchMode

    for module in model.modules():
        if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
            return True
    if hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return False
    # This is the only trace of functions that are compiled outside the model, or by Lightning.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(frames, "cached_backends", {}).values())


_FAILED = -(2**50)
"""Count of a rank that failed to count; it makes the sum over the ranks negative."""
