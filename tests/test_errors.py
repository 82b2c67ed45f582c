"""Typed errors."""

import copy
import pickle

import pytest

from hybrid_predict import errors

MADE = [
    errors.ConfigError("metric", "a name", 3, "Give one."),
    errors.UnsupportedSetupError("Trainer", "a single device", "two"),
    errors.MissingExtraError("The audit", "cli"),
    errors.UsageError("two steps without an update"),
    errors.CheckpointError("another model"),
    errors.ContractError("Mine", "a pure forecast"),
    errors.PredictorError("Mine", "a WeightDelta", None),
    errors.RankError(1, "OSError: the share is gone"),
]


def test_every_error_is_tested():
    defined = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert {type(e) for e in MADE} == set(defined) - {errors.HybridPredictError}


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_errors_can_leave_a_worker_process(error, copied):
    found = copied(error)
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))
