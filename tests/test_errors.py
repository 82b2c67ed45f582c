"""Typed errors: what failed, where, and what to do about it."""

import copy
import pickle

import pytest

from hybrid_predict import HybridPredictError, RecoveryAction, errors

MADE = {
    errors.ConfigError("metric", "a name", 3, "Give one."): ("metric", ValueError, "abort"),
    errors.UnsupportedSetupError("Trainer", "one device", "two"): (
        "Trainer",
        RuntimeError,
        "abort",
    ),
    errors.MissingExtraError("The audit", "cli"): ("The audit", ImportError, "abort"),
    errors.UsageError("two steps without an update"): ("", RuntimeError, "continue"),
    errors.CheckpointError("another model"): ("", ValueError, "restore"),
    errors.ContractError("Mine", "a pure forecast"): ("Mine", AssertionError, "abort"),
    errors.PredictorError("Mine.forecast", "a WeightDelta", None): (
        "Mine.forecast",
        TypeError,
        "full steps only",
    ),
    errors.RankError(1, "OSError: the share is gone"): ("rank 1", RuntimeError, "restore"),
}


def test_every_error_is_tested():
    defined = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    public = {cls for cls in defined if not cls.__name__.startswith("_")}
    assert {type(e) for e in MADE} == public - {HybridPredictError}


def test_every_action_is_that_of_some_error():
    assert {error.action for error in MADE} == set(RecoveryAction)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_say_what_failed_where_and_what_to_do(error):
    where, builtin, action = MADE[error]
    assert (error.what, error.where, error.action) == (str(error), where, RecoveryAction(action))
    assert isinstance(error, HybridPredictError)
    assert isinstance(error, builtin)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_can_leave_a_worker_process(error, copied):
    found = copied(error)
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize("cls", [errors.ConfigError, errors.UnsupportedSetupError])
def test_message_names_argument_expectation_finding_and_remedy(cls):
    error = cls("speedup", "a positive number", -1, "Raise it.")
    assert str(error) == "speedup: expected a positive number, got -1. Raise it."
    assert str(cls("speedup", "a positive number", -1)).endswith("got -1.")


def test_missing_extra_says_how_to_install_it():
    error = errors.MissingExtraError("A figure", "cli")
    assert 'pip install "path/to/hybrid_predict[cli]", with the path to your checkout' in str(error)
    assert error.extra == "cli"
