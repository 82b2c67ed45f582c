"""Every exception that the package raises on purpose, and what to do after each."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from typing import Any


class RecoveryAction(str, Enum):
    """What a caller can do after an error; training state is intact in every case."""

    CONTINUE = "continue"
    """Call again, corrected; the run goes on."""
    UNDO = "undo"
    """Undo the predicted steps under way, then go on."""
    FULL_STEPS_ONLY = "full steps only"
    """Go on without predicted steps and corrected updates."""
    RESTORE = "restore"
    """Stop, and resume the run from its last checkpoint."""
    ABORT = "abort"
    """Stop; the set-up has to change first."""


class HybridPredictError(Exception):
    """Base class of all errors raised by ``hybrid_predict``.

    Args:
        message: What was expected, what came, and the remedy.
        where: What failed: an argument, a call, a class or a rank.
        action: What to do about it; the class's own if None.
    """

    action: RecoveryAction = RecoveryAction.ABORT

    def __init__(self, message: str, where: str = "", action: RecoveryAction | None = None) -> None:
        super().__init__(message)
        self.where = where
        self.action = action or type(self).action

    @property
    def what(self) -> str:
        """The message, which says what failed."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let errors leave a worker process: their constructors take other arguments than a text.

        Returns:
            What makes the error anew around its text and attributes, for ``pickle``.
        """
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class _ArgumentError(HybridPredictError):
    """An error about one argument.

    Args:
        argument: Name of the argument, as the user wrote it.
        expected: What would have been accepted.
        got: The value that came.
        remedy: What to do about it, one sentence.
    """

    def __init__(self, argument: str, expected: str, got: object, remedy: str = "") -> None:
        super().__init__(
            f"{argument}: expected {expected}, got {got!r}. {remedy}".rstrip(), argument
        )
        self.argument = argument


class ConfigError(_ArgumentError, ValueError):
    """An argument has a value that cannot work."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the nearest known word; empty if none is near."""
    near = get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else ""


class UnsupportedSetupError(_ArgumentError, RuntimeError):
    """The surrounding training set-up is one that the plug-in cannot work with."""


class UsageError(HybridPredictError, RuntimeError):
    """Calls came in an order that has no meaning, such as two steps without an update."""

    action = RecoveryAction.CONTINUE


class CheckpointError(HybridPredictError, ValueError):
    """A saved state does not belong to this model, optimizer or version."""

    action = RecoveryAction.RESTORE


class PredictorError(HybridPredictError, TypeError):
    """A predictor or an update gave a result of another form than its parameters need.

    Args:
        subject: Name of its class and method.
        expected: The form that was expected.
        got: What came.
    """

    action = RecoveryAction.FULL_STEPS_ONLY

    def __init__(self, subject: str, expected: str, got: object) -> None:
        remedy = "Run the checks of hybrid_predict.testing on it."
        super().__init__(f"{subject}: expected {expected}, got {got!r}. {remedy}", subject)
        self.subject = subject


class ContractError(HybridPredictError, AssertionError):
    """A predictor, update or array library does not do what its base class promises.

    Args:
        subject: Name of its class.
        promise: What was promised.
        got: What it did.
    """

    def __init__(self, subject: str, promise: str, got: object = "otherwise") -> None:
        super().__init__(f"{subject}: expected {promise}, got {got!r}.", subject)
        self.subject = subject


class RankError(HybridPredictError, RuntimeError):
    """Another process that trains the same model has failed, so that this one cannot go on.

    Args:
        rank: Its number, None if nobody could say.
        cause: What it failed with.
    """

    action = RecoveryAction.RESTORE

    def __init__(self, rank: int | None, cause: str) -> None:
        who = "another rank" if rank is None else f"rank {rank}"
        remedy = "Stop every rank, and resume the run from its last checkpoint."
        expected = "every rank to take part in the full step"
        text = f"ranks: expected {expected}, but {who} failed with {cause}. {remedy}"
        super().__init__(text, who)
        self.rank = rank


class MissingExtraError(HybridPredictError, ImportError):
    """An optional dependency is not installed.

    Args:
        feature: What was asked for.
        extra: The extra of ``hybrid-predict`` that brings it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs packages that are not installed. "
            f'Install them with: pip install "hybrid-predict[{extra}]"',
            feature,
        )
        self.extra = extra
