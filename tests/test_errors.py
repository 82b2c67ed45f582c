"""Typed errors: what failed, and what to do about it."""

import pickle

import pytest

from hybrid_predict import errors
from hybrid_predict.errors import HybridPredictError

MADE = {
    errors.ConfigError("metric", "a name", 3, "Give one."): ValueError,
    errors.UnsupportedSetupError("Trainer", "one device", "two"): RuntimeError,
    errors.MissingExtraError("The audit", "cli"): ImportError,
    errors.UsageError("two steps without an update"): RuntimeError,
    errors.CheckpointError("another model"): ValueError,
    errors.PredictorError("Mine.forecast", "a WeightDelta", None): TypeError,
}


def test_every_error_is_tested():
    defined = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    public = {cls for cls in defined if not cls.__name__.startswith("_")}
    assert {type(e) for e in MADE} == public - {HybridPredictError}


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_are_of_pythons_kinds_and_can_leave_a_worker_process(error):
    assert isinstance(error, HybridPredictError)
    assert isinstance(error, MADE[error])
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize("cls", [errors.ConfigError, errors.UnsupportedSetupError])
def test_message_names_argument_expectation_finding_and_remedy(cls):
    error = cls("speedup", "a positive number", -1, "Raise it.")
    assert str(error) == "speedup: expected a positive number, got -1. Raise it."
    assert str(cls("speedup", "a positive number", -1)).endswith("got -1.")
