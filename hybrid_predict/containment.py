"""Keeps a failure inside the plug-in from ending the user's training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hybrid_predict.errors import HybridPredictError
from hybrid_predict.torch import ranks


@contextmanager
def contained(
    undo: Callable[[str], None], fall_back: Callable[[str, Exception], None]
) -> Iterator[None]:
    """Run code of the plug-in; if it fails, undo the predicted steps and fall back.

    Errors of this package (wrong arguments) and exceptions such as ``KeyboardInterrupt`` are raised
    again after the undo. With several ranks, every error is raised again, because the other ranks
    cannot know that this rank has fallen back and would wait for it forever. The other ranks are
    notified; if another rank failed first, its failure is raised instead.

    Args:
        undo: Undoes the predicted steps and puts the gradients back. It is called with the reason
            on any exception.
        fall_back: Continues the run as plain training. It is called with the reason and the error.
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
