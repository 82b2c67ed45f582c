"""Counts the floating point operations of a full step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hybrid_predict.errors import raise_interrupt
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.ranks import processes, shards

_RECURRENT = {
    "aten::mkldnn_rnn_layer": 1,
    "aten::mkldnn_rnn_layer_backward": 2,
    "aten::_cudnn_rnn": 1,
    "aten::_cudnn_rnn_backward": 2,
}
"""Number of passes in each call of a fused recurrent layer; torch has no formula for these."""

Follow = Callable[[Any, Any, Any, Any], None]
"""Takes an operation, its arguments, its keyword arguments and its result."""

_FAILED = -(2**50)
"""Count of an operation whose formula fails; it makes the sum over the ranks negative."""


@final
class Watching(TorchDispatchMode):
    """Calls ``see`` with each operation, its arguments and its result."""

    # Without it, operators such as torch.cond raise.
    supports_higher_order_operators = True

    def __init__(self, see: Follow) -> None:
        super().__init__()
        self._see = see

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work inside the mode; otherwise it never compiles the function."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see(func, args, kwargs or {}, result)
        return result


@final
class OperationCounter:
    """Counts the operations of one plain full step, and what correcting it adds.

    Operations without a formula in torch count zero, as do those that the compiler has fused.
    Torch's own ``FlopCounterMode`` is not used, because it also hooks modules; this breaks losses
    that differentiate inside the forward pass, as in physics-informed networks.
    """

    def __init__(self, ledger: SavingsLedger) -> None:
        self._ledger = ledger
        self._mode: Watching | None = None
        self._follow: Follow | None = None
        self._total = self._added = 0
        self._counts = True
        self._started = False

    def start(self, model: nn.Module, follow: Follow | None = None) -> None:
        """Count the next full step, if it is the first one and all of it can be counted.

        Not counted are models with compiled parts, for which ``follow`` is not called either, and
        those with tensor parallelism, where every rank would count the full layers.
        """
        known = self._started or self._ledger.flops_per_step is not None
        self._started = True
        self._counts = not (known or shards.is_tensor_parallel(model))
        self._follow = follow
        if (self._counts or follow is not None) and not _compiled(model):
            self._mode = Watching(self._see)
            self._mode.__enter__()

    @property
    def counting(self) -> bool:
        """Whether a full step is being counted."""
        return self._mode is not None and self._counts

    @contextmanager
    def correcting(self) -> Iterator[None]:
        """Count the operations inside the block as those of corrected updates."""
        before = self._total
        try:
            yield
        finally:
            self._added += self._total - before

    def stop(self) -> bool:
        """Stop counting; return whether a full step was being counted."""
        counting = self.counting
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        self._mode = None
        return counting

    def reset(self) -> None:
        """Discard the count of an unfinished full step, and count the next one."""
        if self.stop():
            self._total = self._added = 0
            self._started = False

    def report(self) -> bool:
        """Write the count so far to the ledger, on all ranks; return whether there was any."""
        operations = processes.total(self._total - self._added)
        if operations > 0:
            self._ledger.flops_per_step = operations
        return operations > 0

    def end_step(self) -> bool:
        """Write the counts of a finished full step to the ledger; return whether there were any."""
        if not (self.stop() and self.report()):
            return False
        # The others wait for the rank that has most to do.
        self._ledger.flops_per_correction = max(processes.gather(self._added)) * processes.size()
        return True

    def _see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self._counts:
            try:
                self._total += _operations(func, args, kwargs, result)
            except Exception as error:  # it must not end the user's forward pass
                self._total += _FAILED
                raise_interrupt(error)
        if self._follow is not None:
            self._follow(func, args, kwargs, result)


def _operations(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    operation = func._overloadpacket
    if (count := flop_registry.get(operation)) is not None:
        return int(count(*args, **kwargs, out_val=result))
    passes = _RECURRENT.get(operation._qualified_op_name, 0)
    if not passes:
        return 0
    inputs, *others = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
    positions = inputs.numel() // max(1, inputs.shape[-1])
    return 2 * passes * positions * sum(x.numel() for x in others if x.dim() == 2)


def _compiled(model: nn.Module) -> bool:
    """Return whether the model may have compiled parts, whose operations are not all seen."""
    for module in model.modules():
        if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
            return True
    if hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return False
    # This is the only trace of functions that are compiled outside the model, or by Lightning.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(frames, "cached_backends", {}).values())
