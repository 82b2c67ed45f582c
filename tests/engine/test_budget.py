"""Corrections stay within ``max_overhead``: as often as the budget allows."""

import copy
import logging
import re

import pytest
import torch
from loops import Run, normal, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.ledger import FELL_BACK, Phase
from hybrid_predict.policy import budget


@pytest.fixture(autouse=True)
def every_operation_counts(monkeypatch):
    monkeypatch.setattr(budget, "SMALLEST_STEP", 0.0)


def squared(model, k):
    x = normal(k, 16, 8)
    return (model(x) - x[:, :4].sin()).square().mean()


def budgeted(**changes):
    """A small network in a plain loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = HybridConfig(**{"total_steps": 40, "speedup": 1, **changes})
    return Run(model, optimizer, config, squared)


def period(run):
    return run.engine._groups.period


def corrected(run, plain):
    """Whether a matrix was corrected in each full step, by a run with the same batches."""
    name = "2.weight"
    pairs = zip(run.inside, plain.inside, strict=True)
    return [not torch.equal(x[name], y[name]) for x, y in pairs]


def test_each_matrix_is_corrected_in_one_full_step_of_a_period():
    run, never = budgeted(max_overhead=0.9), budgeted(max_overhead=0.0)
    for _ in range(20):
        never.model.load_state_dict(run.model.state_dict())
        never.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        run.step()
        never.step()
    found, often = corrected(run, never), period(run)
    first = found.index(True)
    assert 1 < often < 10 and first < often
    assert found == [k % often == first for k in range(20)]


def test_a_resumed_run_goes_on_within_a_period():
    half, other = budgeted(max_overhead=1.0).train(9), budgeted(max_overhead=1.0)
    other.model.load_state_dict(half.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(half.optimizer.state_dict()))
    other.records = half.records[:]
    other.engine.load_state_dict(half.engine.state_dict())
    assert period(other) == period(half) > 1 and 9 % period(half)
    assert same_bits(weights(other.train(9).model), weights(half.train(9).model))


def test_a_run_that_may_correct_nothing_is_plain_from_its_first_step():
    run = budgeted(max_overhead=0.1, speedup=1.5).finish()
    plain = budgeted(enabled=False).finish()
    assert run.engine.ledger.corrected_steps == 0
    assert run.records[-1].phase is Phase.PLAIN
    assert same_bits(weights(run.model), weights(plain.model))


def test_what_would_allow_corrections_is_told_once(caplog):
    run = budgeted(max_overhead=0.1, speedup=1.5, total_steps=200)
    with caplog.at_level(logging.INFO):
        (event,) = run.train(3).engine.ledger.events
    assert event["reason"].startswith(FELL_BACK) and caplog.text.count(event["reason"]) == 1
    match = re.search(r"max_overhead=([\d.]+)$", event["reason"])
    assert period(run) is None
    assert period(budgeted(max_overhead=float(match[1])).train(3)) is not None


@pytest.mark.parametrize("observed", [True, False])
def test_a_fall_back_names_what_would_fit_though_kinds_are_decided_late(observed):
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64).requires_grad_(False))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=1e-2)
    config = HybridConfig(speedup=1, total_steps=20, max_overhead=0)
    engine = HybridEngine(model, optimizer, config)
    engine.before_step()
    loss = model(torch.ones(2, 64)).square().mean()
    loss.backward()
    if observed:
        engine.observe_loss(loss)
    optimizer.step()
    engine.after_step(loss)
    reason = engine.ledger.last_event(FELL_BACK)[1]
    assert re.search(r"set max_overhead=[\d.]+$", reason)
