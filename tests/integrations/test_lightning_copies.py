"""Packages train with copies of the callback that they were given, and pickle it."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning_models import Ungated, fit

from hybrid_predict import FittedPredictor, HybridPredict, SpectralUpdate
from hybrid_predict.config import HybridConfig
from hybrid_predict.integrations.last_run import LastRun
from hybrid_predict.ledger import SavingsLedger

OPTIONS = {"speedup": 2.0, "max_overhead": 1e9, "skip_data": "tail"}


def test_the_users_own_callback_tells_of_the_run_of_a_copy() -> None:
    mine = Ungated(**OPTIONS)
    used = copy.deepcopy(copy.copy(mine))
    fit([used], max_steps=30)
    assert used.ledger.predicted_steps > 5
    assert mine.ledger is used.ledger and mine.history is used.history
    assert len(mine.history.rows) == mine.ledger.full_steps
    assert mine.engine is None


def test_copies_of_a_callback_that_has_run_start_anew() -> None:
    mine = Ungated(**OPTIONS)
    fit([mine], max_steps=30)
    first = mine.ledger
    for again in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert again.engine is None
        assert again.ledger.summary() == first.summary()
        fit([again], max_steps=20)
        assert again.ledger.steps == 20
    assert first.steps == 30
    assert mine.ledger is first and len(mine.history.rows) == first.full_steps


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_in_the_middle_of_a_run_hold_settings_and_its_ledger_so_far(how: Any) -> None:
    """They are no part of the run, which goes on as if nobody had copied anything."""
    mine, copies = Ungated(**OPTIONS), []

    class Copying(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
            if number == 3 and not copies:  # inside a full step
                copies.append((how(mine), mine.ledger.full_steps))

    trainer, _ = fit([mine, Copying()], max_steps=30)
    plain = Ungated(**OPTIONS)
    twin, _ = fit([plain], max_steps=30)
    ((made, full_steps),) = copies
    assert made.engine is None and repr(made) == repr(mine)
    assert made.ledger.full_steps in (full_steps, mine.ledger.full_steps)
    assert mine.ledger.steps == 30 == trainer.global_step
    ours, theirs = trainer.lightning_module.parameters(), twin.lightning_module.parameters()
    assert all(map(torch.equal, ours, theirs))
    fit([made], max_steps=20)
    assert made.ledger.steps == 20 and mine.ledger.steps == 30


def test_copies_that_run_one_after_the_other_keep_their_own_ledgers() -> None:
    first = Ungated(**OPTIONS)
    second = copy.deepcopy(first)
    trainer, _ = fit([first], max_steps=30)
    ledger, rows = first.ledger, len(first.history.rows)
    fit([second], max_steps=20)
    assert first.ledger is ledger and len(first.history.rows) == rows
    assert (first.ledger.steps, second.ledger.steps) == (30, 20)
    saved: dict[str, Any] = {}
    first.on_save_checkpoint(trainer, trainer.lightning_module, saved)
    assert saved["hybrid_predict"]["engine"]["ledger"]["full_steps"] == ledger.full_steps


def test_settings_survive_pickling_before_a_run() -> None:
    options = {"updates": {"hidden": SpectralUpdate(share=0.5)}, "predictors": {"hidden": "fitted"}}
    for callback in (HybridPredict(**OPTIONS), HybridPredict(full_steps=2, predict_steps=1),
                     HybridPredict(predictors={"hidden": FittedPredictor()}),
                     HybridPredict(**options)):  # fmt: skip
        for made in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
            assert repr(made.config) == repr(callback.config)
            assert made.skip_data == callback.skip_data
            assert made.ledger.steps == 0


def test_a_pickled_callback_needs_few_classes_to_be_allowed() -> None:
    mine = Ungated(**OPTIONS)
    fit([mine], max_steps=20)
    known = HybridPredict(speedup=2.0)
    known._last = mine._last
    buffer = io.BytesIO()
    torch.save(known, buffer)
    buffer.seek(0)
    allowed = [HybridPredict, HybridConfig, LastRun, SavingsLedger]
    with torch.serialization.safe_globals(allowed):
        loaded = torch.load(buffer, weights_only=True)
    assert loaded.ledger.summary() == mine.ledger.summary()
    assert mine.history.rows and not loaded.history.rows
