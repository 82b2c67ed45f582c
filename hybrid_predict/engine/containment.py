"""Keeps a failure of the plug-in's own parts from ending the user's training; lets go of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hybrid_predict.accounts.operations import OperationCounter
from hybrid_predict.engine.step import Step
from hybrid_predict.errors import HybridPredictError
from hybrid_predict.tensors import ranks


@contextmanager
def contained(
    undo: Callable[[str], None], fall_back: Callable[[str, Exception], None]
) -> Iterator[None]:
    """Run a part of the plug-in that must not end the user's training.

    Args:
        undo: Puts weights and gradients back; called with the reason, whatever comes out of the
            block.
        fall_back: Leaves the rest of the run to plain training, with the reason and the error. It
            is not called for errors of this package, which tell of wrong arguments, nor for what is
            no error, such as Ctrl-C: those go on to the caller. So does every error where several
            ranks train together: the others cannot know that this one has stopped, and would wait
            for it. They are told, and where another rank was first its failure is raised instead.
    """
    try:
        yield
    except BaseException as error:
        reason = f"the plug-in failed with {ranks.summary(error)}"
        undo(reason)
        if not isinstance(error, Exception) or isinstance(error, HybridPredictError):
            raise
        if ranks.size() > 1:
            ranks.fail_together(error)
            raise
        fall_back(reason, error)


def let_go(open_steps: dict[str, Step], handles: list[Any], operations: OperationCounter) -> None:
    """Leave a model to itself: no unverified predicted steps, and no hook any more."""
    operations.stop()
    for step in open_steps.values():
        step.undo("the engine was detached")
    open_steps.clear()
    for handle in handles:
        handle.remove()
