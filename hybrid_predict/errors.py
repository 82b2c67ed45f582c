"""All exceptions that the package raises on purpose; each message ends with a remedy."""

from __future__ import annotations

import copyreg
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import pairwise
from types import FrameType
from typing import Any, TypeVar, final

T = TypeVar("T")


class HybridPredictError(Exception):
    """Base class of all errors that ``hybrid_predict`` raises; the training state is intact."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take more than the message, so errors could not leave a worker process.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class _ArgumentError(HybridPredictError):
    """An error about one argument.

    Args:
        argument: Name of the argument, as the user wrote it.
        expected: Which values are accepted.
        got: The value that was given.
        remedy: How to fix it, in one sentence.
    """

    def __init__(self, argument: str, expected: str, got: object, remedy: str = "") -> None:
        text = repr(got)
        if len(text) > 300:
            text = f"{text[:200]}… ({len(text):,} characters)"
        super().__init__(f"{argument}: expected {expected}, got {text}. {remedy}".rstrip())
        self.argument = argument


@final
class ConfigError(_ArgumentError, ValueError):
    """An argument has an invalid value."""


@final
class UnsupportedSetupError(_ArgumentError, RuntimeError):
    """The plug-in does not support this model, optimizer, trainer or process group."""


@final
class UsageError(HybridPredictError, RuntimeError):
    """Methods were called in the wrong order, such as two steps without an update in between."""


@final
class CheckpointError(HybridPredictError, ValueError):
    """A saved state does not belong to this model, optimizer or version, or it is damaged."""


@final
class PredictorError(HybridPredictError, TypeError):
    """A predictor or an update, ``subject``, returned a result of the wrong form."""

    def __init__(self, subject: str, expected: str, got: object) -> None:
        remedy = "The docstring of its base class says what it has to return."
        super().__init__(f"{subject}: expected {expected}, got {got!r}. {remedy}")


@final
class MissingExtraError(HybridPredictError, ImportError):
    """An ``extra`` of ``hybrid-predict`` that a feature needs is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        line = install_line(extra)
        super().__init__(f"{feature} needs packages that are not installed. Install them: {line}")


def install_line(extra: str) -> str:
    """Return the command that installs extras; the package is installed from a checkout."""
    return f'pip install "path/to/hybrid_predict[{extra}]", with the path to your checkout'


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a question that suggests the nearest known word, or "" if none is near."""
    near = get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
    return f"Did you mean {near[0]}?" if near else ""


def registered(argument: str, choice: Any, known: Mapping[str, type[T]], base: type[T]) -> T:
    """Return an object by its name in ``known``; an object of the class ``base`` is returned as is.

    Raises:
        ConfigError: If ``choice`` is neither.
    """
    if isinstance(choice, base):
        return choice
    if isinstance(choice, str) and choice in known:
        return known[choice]()
    expected = f"one of {', '.join(sorted(known))}, or an object of {base.__name__}"
    raise ConfigError(argument, expected, choice, did_you_mean(choice, known))


def summary(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return type(error).__name__ + (f": {text[0]}" if text else "")


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


def _is_given(caller: FrameType, frame: FrameType) -> bool:
    """Whether the frame of its caller is an argument of a function that runs in ``frame``."""
    given = inspect.getargvalues(frame)
    values = [given.locals.get(name) for name in given.args]
    values += given.locals.get(given.varargs or "", ())
    return any(value is caller for value in values)


def _package(module: object) -> str:
    return str(module).partition(".")[0]


@contextmanager
def reading(what: str = "state") -> Iterator[None]:
    """Convert any error that a damaged state raises in the block to a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise_interrupt(error)
        raise CheckpointError(
            f"{what}: expected a complete, unaltered state, but reading it failed with "
            f"{error!r}. Resume from another checkpoint."
        ) from error


@contextmanager
def all_or_nothing(restore: Callable[[], None]) -> Iterator[None]:
    """Do as `reading`, and restore what was there before if the block raises anything."""
    try:
        with reading():
            yield
    except BaseException:
        restore()
        raise
