"""Keeps what goes wrong in forecasting from the training that it is to serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hybrid_predict import distributed
from hybrid_predict.errors import HybridPredictError


@contextmanager
def contained(
    retreat: Callable[[], None], stop: Callable[[str, Exception], None]
) -> Iterator[None]:
    """Run a part of the plug-in that must not end the user's training.

    Args:
        retreat: Puts weights and optimizer state back; called whatever comes out of the block.
        stop: Ends forecasting, with the reason and the error. It is not called for errors of this
            package, which tell of wrong arguments, nor for what is no error, such as Ctrl-C: those
            go on to the caller. So does every error where several ranks train together: the others
            cannot know that this one has stopped, and would wait for it. They are told, and where
            another rank was first its failure is raised instead.
    """
    try:
        yield
    except BaseException as error:
        retreat()
        if not isinstance(error, Exception) or isinstance(error, HybridPredictError):
            raise
        if distributed.size() > 1:
            distributed.fail_together(error)
            raise
        stop(f"forecasting failed with {distributed.summary(error)}", error)
