"""What is registered keeps the contract of its base class."""

import pytest
from cases import PREDICTOR_CASES, UPDATE_CASES
from contract import check_predictor, check_update

from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.forecast.predictors import PREDICTORS
from hybrid_predict.updates import UPDATES


def test_every_registered_class_has_a_case():
    assert {name: type(case) for name, case in PREDICTOR_CASES.items()} == PREDICTORS
    assert {name: type(case) for name, case in UPDATE_CASES.items()} == UPDATES


@pytest.mark.parametrize("history", HISTORY_DTYPES)
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictors_keep_their_contract(name, history):
    check_predictor(PREDICTORS[name](), history)
    check_predictor(PREDICTOR_CASES[name], history)


@pytest.mark.parametrize("history", HISTORY_DTYPES)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_keep_their_contract(name, history):
    check_update(UPDATES[name](), history)
    check_update(UPDATE_CASES[name], history)
