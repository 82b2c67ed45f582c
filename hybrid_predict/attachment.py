"""Attaches an engine to a model: one engine per parameter, failures kept inside, detaching."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.errors import HybridPredictError, UnsupportedSetupError, UsageError
from hybrid_predict.interrupts import raise_interrupt
from hybrid_predict.step import Step
from hybrid_predict.torch import ranks
from hybrid_predict.torch.cost import OperationCounter

_ENGINES = WeakTensorKeyDictionary()
"""Weak reference to the engine of each parameter; two engines would correct an update twice."""


class Uncopied:
    """Base class of objects that are tied to one model by hooks, and so cannot be copied."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{type(self).__name__}: expected its state_dict() to be copied or pickled, got the "
            "object itself. Make another one for a copy of the model, and load the state."
        )


def claim(engine: object, parameters: Iterable[Tensor]) -> None:
    """Register an engine as the only one that trains these parameters.

    Raises:
        UnsupportedSetupError: If another engine that still exists has one of them.
    """
    for p in parameters:
        owner = _ENGINES.get(p)
        if owner is not None and owner() not in (None, engine):
            raise UnsupportedSetupError(
                "model",
                "parameters that no other engine has",
                "a model that another HybridEngine trains",
                "Call detach() on the other engine first.",
            )
        _ENGINES[p] = weakref.ref(engine)


def unclaim(engine: object, parameters: Iterable[Tensor]) -> None:
    """Unregister an engine from these parameters, so that another one can train them."""
    for p in parameters:
        if (owner := _ENGINES.get(p)) is not None and owner() is engine:
            del _ENGINES[p]


def detach(open_steps: dict[str, Step], handles: list[Any], operations: OperationCounter) -> None:
    """Undo the predicted steps that are not verified, and remove all hooks.

    Args:
        open_steps: The open full step, if any; the list is emptied.
        handles: Handles of the hooks on the optimizers.
        operations: Counter of operations; stopped.
    """
    operations.stop()
    for step in open_steps.values():
        step.undo("the engine was detached")
    open_steps.clear()
    for handle in handles:
        handle.remove()


@contextmanager
def contained(
    undo: Callable[[], None], fall_back: Callable[[str, Exception], None]
) -> Iterator[None]:
    """Run code of the plug-in; if it fails, undo the predicted steps and fall back.

    Errors of this package (wrong arguments), those of a signal handler, and exceptions such as
    ``KeyboardInterrupt`` are raised again after the undo. With several ranks, every error is raised
    again, because the other ranks cannot know that this rank has fallen back and would wait for it
    forever.

    Args:
        undo: Undoes the predicted steps and puts the gradients back, on any exception.
        fall_back: Continues the run as plain training. It is called with the reason and the error.
    """
    try:
        yield
    except BaseException as error:
        undo()
        if not isinstance(error, Exception) or isinstance(error, HybridPredictError):
            raise
        if ranks.size() > 1:
            raise
        raise_interrupt(error)
        fall_back(f"the plug-in failed with {ranks.summary(error)}", error)
