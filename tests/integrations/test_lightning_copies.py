"""Packages train with copies of the callback that they were given, and pickle it."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from lightning_models import Ungated, fit

from hybrid_predict import FittedPredictor, HybridPredict, SpectralUpdate
from hybrid_predict.config import HybridConfig
from hybrid_predict.integrations.lightning import LastRun
from hybrid_predict.ledger import SavingsLedger

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


@pytest.mark.parametrize("how", [copy.deepcopy, pickled])
def test_settings_survive_before_a_run(how: Any) -> None:
    objects = {"updates": {"hidden": SpectralUpdate()}, "predictors": {"hidden": FittedPredictor()}}
    callback = HybridPredict(full_steps=2, predict_steps=1, skip_data="tail", **objects)
    copied = how(callback)
    assert repr(copied.config) == repr(callback.config)
    assert (copied.skip_data, copied.ledger.steps) == ("tail", 0)


def test_a_pickled_callback_needs_few_classes_to_be_allowed() -> None:
    mine = HybridPredict(speedup=2.0)
    fit([mine], max_steps=20)
    buffer = io.BytesIO()
    torch.save(mine, buffer)
    buffer.seek(0)
    allowed = [HybridPredict, HybridConfig, LastRun, SavingsLedger]
    with torch.serialization.safe_globals(allowed):
        loaded = torch.load(buffer, weights_only=True)
    assert loaded.ledger.summary() == mine.ledger.summary()
    assert mine.history.rows and not loaded.history.rows
