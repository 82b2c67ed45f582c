"""Counts operations and memory traffic of single full steps, outside the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from hybrid_predict import distributed
from hybrid_predict.ledger import SavingsLedger

logger = distributed.rank_zero_logger(__name__)


class FlopProfile:
    """Counts what a plain full step and a forecast take; operations torch does not know count zero.

    Args:
        ledger: Is told what was counted.
        counts: Whether to count at all.
        most: Full steps that forecasts can save at most per full step they learn from.
    """

    def __init__(self, ledger: SavingsLedger, counts: bool = True, most: float = 0.0) -> None:
        self._ledger, self._counts, self._most = ledger, counts, most
        self._mode: Any = None
        self._total = 0
        self._parts: float | None = None
        self._learned = False

    def start(self, model: nn.Module) -> None:
        """Start counting, unless the model has parts that cannot be counted.

        Those are compiled parts, and tensor parallelism, where every rank would count all. Torch's
        own FlopCounterMode hooks modules as well, which breaks losses that differentiate inside
        the forward pass, such as those of physics-informed nets.
        """
        if not self._counts or distributed.is_tensor_parallel(model):
            return
        if any(hasattr(module, "_orig_mod") for module in model.modules()):
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

    @contextmanager
    def forecasting(self, model: nn.Module, period: int) -> Iterator[None]:
        """Around the work of forecasts; a full step has as many such parts as optimizers.

        Args:
            model: The model that is trained.
            period: Full steps that share what is counted now.
        """
        self._learned, ledger = True, self._ledger
        if self._parts is None and ledger.flops_per_step and ledger.flops_per_forecast is None:
            self._parts = 0.0
        if self._parts is None:
            yield
            return
        self.start(model)
        try:
            yield
        finally:
            # Ranks do this work alike, so nothing has to be reduced.
            self._parts += (self.stop() or 0) * distributed.size() / period

    def end_step(self, step: int) -> None:
        """Note what was counted in full step ``step``."""
        ledger, flops = self._ledger, distributed.total(self.stop())
        ledger.flops_per_step = ledger.flops_per_step or flops
        ledger.learned += self._learned
        parts, self._parts, self._learned = self._parts, None, False
        if parts is None:
            return
        ledger.flops_per_forecast = round(parts)
        share = parts / (ledger.flops_per_step or 1)
        reason = "forecasts take more operations than they save"
        if 0.0 < self._most < share and ledger.record(step, reason):
            logger.warning(
                "Full step %d: %s: %.2g full steps each to save at most %.2g. Expect fewer full "
                "steps, and no less time where operations are what takes it. Larger batches, a "
                "higher refresh_every, or patterns in kinds that leave out wide layers help.",
                step, reason, share, self._most,
            )  # fmt: skip


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
