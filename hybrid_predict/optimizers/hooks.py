"""Hooks on the steps of optimizers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook


@final
class _Call(dict[str, Any]):
    """Keyword arguments of a call of ``step``; torch holds them until the call ends."""


@final
class StepHooks:
    """The hooks on the steps of one optimizer, until its ``handles`` are removed.

    Other hooks see, and may change, gradients before the listener and weights after it, whenever
    they were registered. The step of a subclass calls the step of its base class, which may call
    all hooks again; only the outermost call counts. A call in the handler of an error is no part of
    the call that raised it.

    ``listener`` is a weak reference. ``before_update(index, loss)`` is called when the gradients
    are final, with the loss of a closure or None, and ``after_update(index)`` at the end.
    """

    def __init__(self, optimizer: Optimizer, index: int, listener: Callable[[], Any]) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._index = index
        self.listener = listener
        self._outermost: Callable[[], _Call | None] = _no_call
        self._handled = 0
        self.handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            # It runs before the optimizer's own hooks, whose order cannot change while they run.
            register_optimizer_step_pre_hook(self._reorder),
        ]

    def forget_call(self) -> None:
        """Forget a call of ``step`` that an error has ended."""
        self._outermost = _no_call

    def _reorder(self, optimizer: Optimizer, *_: Any) -> None:
        """Make the listener's hooks the last before, and the first after, an update."""
        if self._optimizer() is not optimizer:
            return
        for handle, last in zip(self.handles[:2], (True, False), strict=True):
            hooks: Any = handle.hooks_dict_ref() or {}
            if handle.id in hooks and next((reversed if last else iter)(hooks)) != handle.id:
                hooks.move_to_end(handle.id, last)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handled = id(sys.exc_info()[1])
        nested = self._outermost() is not None and handled == self._handled
        receiver = None if nested else self.listener()
        if receiver is None:
            return None
        call = _Call(kwargs)
        self._outermost = weakref.ref(call)
        self._handled = handled
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else args[1] if len(args) > 1 else None
        if not callable(closure):
            receiver.before_update(self._index, None)
            return args, call

        # A closure runs forward and backward inside the step, so gradients are final only after it.
        def observed() -> Any:
            try:
                loss = closure()
            except BaseException:
                self.forget_call()
                raise
            receiver.before_update(self._index, loss)
            return loss

        if named:
            call["closure"] = observed
            return args, call
        return (args[0], observed, *args[2:]), call

    def _after(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs is self._outermost():
            self.forget_call()
            if (receiver := self.listener()) is not None:
                receiver.after_update(self._index)


def _no_call() -> None:
    """Return None: no call of ``step`` is running."""
