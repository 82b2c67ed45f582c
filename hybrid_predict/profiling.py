"""Counts operations and memory traffic of single full steps, outside the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from hybrid_predict import distributed
from hybrid_predict.config import HybridConfig
from hybrid_predict.ledger import SavingsLedger

logger = distributed.rank_zero_logger(__name__)


class FlopProfile:
    """Counts what a plain full step and a forecast take; operations torch does not know count zero.

    Args:
        model: The model that is trained.
        config: Whether to count, and what a forecast is to save.
        ledger: Is told what was counted.
    """

    def __init__(self, model: nn.Module, config: HybridConfig, ledger: SavingsLedger) -> None:
        self._model, self._config, self._ledger = model, config, ledger
        self._mode: Any = None
        self._total = 0
        self._counted: int | None = None

    def start(self) -> None:
        """Start counting, unless the model has parts that cannot be counted.

        Those are compiled parts, and tensor parallelism, where every rank would count all. Torch's
        own FlopCounterMode hooks modules as well, which breaks losses that differentiate inside
        the forward pass, such as those of physics-informed nets.
        """
        compiled = any(hasattr(module, "_orig_mod") for module in self._model.modules())
        if not self._config.count_flops or compiled or distributed.is_tensor_parallel(self._model):
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

    def end_step(self) -> None:
        """Stop counting, if it was under way, and note the operations of a full step."""
        flops = distributed.total(self.stop())
        self._ledger.flops_per_step = self._ledger.flops_per_step or flops

    @contextmanager
    def forecasting(self, step: int) -> Iterator[None]:
        """Around the work of forecasts in full step ``step``, which may come in several parts."""
        ledger = self._ledger
        if ledger.flops_per_step and ledger.flops_per_forecast is None:
            self._counted, ledger.flops_per_forecast = step, 0
        if self._counted != step:
            yield
            return
        self.start()
        try:
            yield
        finally:
            # Ranks do this work alike, so nothing has to be reduced.
            part = (self.stop() or 0) * distributed.size()
            ledger.flops_per_forecast = (ledger.flops_per_forecast or 0) + part
            self._warn(step)

    def _warn(self, step: int) -> None:
        speedup, ledger = self._config.speedup, self._ledger
        saved = 1.0 if speedup == "auto" else speedup - 1.0
        saved *= not self._config.shadow
        share = (ledger.flops_per_forecast or 0) / (ledger.flops_per_step or 1)
        reason = "forecasts take more operations than they save"
        if 0.0 < saved < share and ledger.record(step, reason):
            logger.warning(
                "Full step %d: %s: %.2g full steps each to save at most %.2g. Expect fewer full "
                "steps, and no less time where operations are what takes it. Larger batches, a "
                "higher refresh_every, or patterns in kinds that leave out wide layers help.",
                step, reason, share, saved,
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
