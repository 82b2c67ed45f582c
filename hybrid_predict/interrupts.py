"""Tells errors of code that the plug-in calls from those of code that interrupts it."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType

_CALLED = {"hybrid_predict", "torch", "numpy"}
"""Packages whose own code raises only errors of these packages, and of Python's library."""


def raise_interrupt(error: BaseException) -> None:
    """Raise an error again that is no failure of what was called; it is for the caller.

    Python calls a signal handler or a debugger with the frame that it interrupts. No other function
    gets the frame of its caller. Another thread can also put an error into a running one. Then the
    class of the error belongs to no code that runs there.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    handled = any(_is_given(*pair) for pair in pairwise(frames))
    inside = bool(frames) and _package(frames[-1].f_globals.get("__name__")) in _CALLED
    foreign = _package(type(error).__module__) not in _CALLED | sys.stdlib_module_names
    if handled or (inside and foreign):
        raise error


@contextmanager
def failures_suppressed() -> Iterator[None]:
    """Do as ``suppress(Exception)``, but raise the error of an interrupt."""
    try:
        yield
    except Exception as error:
        raise_interrupt(error)


def _is_given(caller: FrameType, frame: FrameType) -> bool:
    """Whether the frame of its caller is an argument of a function that runs in ``frame``."""
    given = inspect.getargvalues(frame)
    values = [given.locals.get(name) for name in given.args]
    values += given.locals.get(given.varargs or "", ())
    return any(value is caller for value in values)


def _package(module: object) -> str:
    return str(module).partition(".")[0]
