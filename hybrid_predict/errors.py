"""Every exception that the package raises on purpose."""

from __future__ import annotations

import copyreg
from typing import Any


class HybridPredictError(Exception):
    """Base class of all errors raised by ``hybrid_predict``."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let errors leave a worker process: their constructors take other arguments than a text.

        Returns:
            What makes the error anew around its text and attributes, for ``pickle``.
        """
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def _message(argument: str, expected: str, got: object, remedy: str) -> str:
    return f"{argument}: expected {expected}, got {got!r}. {remedy}".rstrip()


class ConfigError(HybridPredictError, ValueError):
    """An argument has a value that cannot work.

    Args:
        argument: Name of the argument, as the user wrote it.
        expected: What would have been accepted.
        got: The value that came.
        remedy: What to do about it, one sentence.
    """

    def __init__(self, argument: str, expected: str, got: object, remedy: str = "") -> None:
        super().__init__(_message(argument, expected, got, remedy))
        self.argument = argument


class UnsupportedSetupError(HybridPredictError, RuntimeError):
    """The surrounding training set-up is one that forecasts cannot work with.

    Args:
        argument: The part of the set-up that is unsupported.
        expected: What is supported.
        got: What was found.
        remedy: What to do about it, one sentence.
    """

    def __init__(self, argument: str, expected: str, got: object, remedy: str = "") -> None:
        super().__init__(_message(argument, expected, got, remedy))
        self.argument = argument


class UsageError(HybridPredictError, RuntimeError):
    """Calls came in an order that has no meaning, such as two steps without an update."""


class CheckpointError(HybridPredictError, ValueError):
    """A saved state does not belong to this model, optimizer or version."""


class PredictorError(HybridPredictError, TypeError):
    """A predictor gave a forecast of another form than its parameters need.

    Args:
        predictor: Name of its class.
        expected: The form that forecasts have.
        got: What came.
    """

    def __init__(self, predictor: str, expected: str, got: object) -> None:
        remedy = "Run hybrid_predict.testing.check_predictor on it."
        super().__init__(_message(f"{predictor}.forecast", expected, got, remedy))
        self.predictor = predictor


class ContractError(HybridPredictError, AssertionError):
    """A predictor, horizon rule or backend does not do what its base class promises.

    Args:
        subject: Name of its class.
        promise: What was promised.
        got: What it did.
    """

    def __init__(self, subject: str, promise: str, got: object = "otherwise") -> None:
        super().__init__(_message(subject, promise, got, ""))
        self.subject = subject


class RankError(HybridPredictError, RuntimeError):
    """Another process that trains the same model has failed, so that this one cannot go on.

    Args:
        rank: Its number, None if nobody could say.
        cause: What it failed with.
    """

    def __init__(self, rank: int | None, cause: str) -> None:
        who = "another rank" if rank is None else f"rank {rank}"
        remedy = "Stop every rank, and resume the run from its last checkpoint."
        expected = "every rank to take part in the full step"
        super().__init__(f"ranks: expected {expected}, but {who} failed with {cause}. {remedy}")
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
            f'Install them with: pip install "hybrid-predict[{extra}]"'
        )
        self.extra = extra
