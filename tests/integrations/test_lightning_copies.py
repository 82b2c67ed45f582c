"""Packages train with copies of the callback that they were given, and pickle it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from lightning_models import Ungated, fit

OPTIONS = {"speedup": 2.0, "max_overhead": 1e9, "skip_data": "tail"}


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def test_the_users_callback_shows_the_run_of_a_copy() -> None:
    mine = Ungated(**OPTIONS)
    used = copy.deepcopy(copy.copy(mine))
    fit([used], max_steps=30)
    assert used.ledger.predicted_steps > 5
    assert mine.ledger is used.ledger and mine.history is used.history
    assert len(mine.history.rows) == mine.ledger.full_steps
    assert mine.engine is None


@pytest.mark.parametrize("how", [copy.deepcopy, pickled])
def test_copies_of_a_callback_that_has_run_start_anew_and_leave_its_ledger(how: Any) -> None:
    mine = Ungated(**OPTIONS)
    trainer, model = fit([mine], max_steps=30)
    ledger, again = mine.ledger, how(mine)
    assert again.engine is None and again.ledger.summary() == ledger.summary()
    fit([again], max_steps=20)
    assert (again.ledger.steps, ledger.steps) == (20, 30)
    assert mine.ledger is ledger and len(mine.history.rows) == ledger.full_steps
    state: dict[str, Any] = {}
    mine.on_save_checkpoint(trainer, model, state)
    assert state["hybrid_predict"]["engine"]["ledger"]["full_steps"] == ledger.full_steps
