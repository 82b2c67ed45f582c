"""Corrections stay within ``max_overhead``: as many rows at a time as the budget allows."""

import copy
import logging
import re
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from loops import Run, normal, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, MomentumPredictor, Phase, SpectralUpdate
from hybrid_predict.ledger import FELL_BACK
from hybrid_predict.rules import budget
from hybrid_predict.updates import UPDATES


@pytest.fixture(autouse=True)
def every_operation_counts(monkeypatch):
    monkeypatch.setattr(budget, "SMALLEST_STEP", 0.0)


def squared(model, k):
    x = normal(k, 16, 8)
    return (model(x) - x[:, :4].sin()).square().mean()


def budgeted(freeze=False, loss=squared, **changes):
    """A small network in a plain loop."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Linear(48, 4))
    model[2].weight.requires_grad_(not freeze)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = HybridConfig(**{"total_steps": 40, "speedup": 1, **changes})
    return Run(model, optimizer, config, loss)


def blocks(run):
    return {group.memory.update.block for group in run.engine._state.groups}


def operations(run, block):
    return sum(group.operations(block) for group in run.engine._state.groups)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("limit", [0.0, 0.1, 1.0, 1e9])
def test_what_correcting_takes_is_the_most_that_the_budget_allows(limit, update):
    run = budgeted(max_overhead=limit, updates={"hidden": update}).train(3)
    ledger, (block,) = run.engine.ledger, blocks(run)
    assert operations(run, block) / ledger.flops_per_step == ledger.correction_share <= limit
    assert block is None or operations(run, 2 * block) / ledger.flops_per_step > limit


@pytest.mark.parametrize(("limit", "told"), [(0.1, True), (1e9, False)])
def test_what_the_budget_changes_is_told_once_and_counted(limit, told, caplog):
    with caplog.at_level(logging.INFO):
        events = budgeted(max_overhead=limit).train(5).engine.ledger.events
    about = [e for e in events if "max_overhead=0.1" in e["reason"]]
    assert len(about) == caplog.text.count("max_overhead=0.1 allows") == told
    assert [(e["step"], e["count"]) for e in about] == [(1, 1)] * told


def test_the_first_correction_is_within_the_budget_already():
    few, same, many = (
        weights(budgeted(max_overhead=limit).train(1).model) for limit in (0.0, 0.001, 1e9)
    )
    assert same_bits(few, same)
    assert not same_bits(few, many)


def test_a_resumed_run_has_the_same_budget():
    half, other = budgeted().train(9), budgeted()
    other.model.load_state_dict(half.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(half.optimizer.state_dict()))
    other.records = half.records[:]
    other.engine.load_state_dict(half.engine.state_dict())
    assert blocks(other) == blocks(half) != {None}
    assert same_bits(weights(other.train(9).model), weights(half.train(9).model))


def test_matrices_that_are_thawed_share_the_budget():
    run = budgeted(freeze=True).train(3)
    assert run.engine.ledger.correction_share <= 0.1
    run.model[2].weight.requires_grad_(True)
    assert run.train(2).engine.ledger.correction_share <= 0.1


def test_where_nothing_can_be_counted_matrices_are_corrected_in_full():
    run = budgeted(max_overhead=0.0)
    run.model.compile(backend="eager")
    run.train(3)
    torch._dynamo.reset()
    assert run.engine.ledger.flops_per_step is None
    assert blocks(run) == {None}


@dataclass(frozen=True, kw_only=True)
class Dear(SpectralUpdate):
    """An update that costs the same however few rows are treated together."""

    def operations(self, like, block):
        return 10**9


def test_a_budget_that_cannot_be_kept_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        run = budgeted(updates={"hidden": Dear()}).train(3)
    assert "operations, more than max_overhead=0.1 allows" in caplog.text
    assert run.engine.ledger.flops_per_correction == 10**9


@pytest.mark.parametrize(
    ("limit", "gated", "predicted"),
    [(0.0, True, False), (0.0, False, True), (1e9, True, True)],
)
def test_weak_corrections_make_up_for_no_predicted_steps(limit, gated, predicted):
    predictors = {"hidden": MomentumPredictor(gated=gated)}
    run = budgeted(
        total_steps=200,
        max_overhead=limit,
        speedup=1.5,
        predictors=predictors,
        loss=lambda model, k: squared(model, 0),
    ).finish()
    assert bool(run.engine.ledger.predicted_steps) is predicted
    assert any(why.startswith(FELL_BACK) for why in run.reasons) is (limit == 0.0 and gated)
    assert run.engine.ledger.steps == 200


def test_several_updates_in_one_full_step_share_the_budget():
    run = budgeted(max_overhead=0.5)
    for _ in range(3):
        run.engine.before_step()
        for k in range(4):
            loss = squared(run.model, k)
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
        run.engine.after_step(loss)
    assert 0 < run.engine.ledger.correction_share <= 0.5


def test_after_a_step_that_was_abandoned_the_next_one_is_counted():
    run = budgeted()
    run.engine.before_step()
    squared(run.model, 0)
    run.engine.abandon()
    run.train(2)
    counted = budgeted().train(2).engine.ledger.flops_per_step
    assert run.engine.ledger.flops_per_step == counted


def test_small_models_are_corrected_in_full(monkeypatch):
    monkeypatch.undo()
    run = budgeted().train(3)
    assert blocks(run) == {None}
    assert run.engine.ledger.correction_share > 0.1
    assert blocks(budgeted(max_overhead=0.0).train(3)) == {1}


@pytest.mark.parametrize(("speedup", "corrected"), [(1.5, 0), (1, 38)])
def test_a_run_with_weak_corrections_alone_is_plain_from_its_first_step(speedup, corrected):
    run = budgeted(max_overhead=0.0, speedup=speedup).finish()
    plain = budgeted(enabled=False).finish()
    assert run.engine.ledger.corrected_steps == corrected
    assert (run.records[-1].phase is Phase.PLAIN) is (speedup > 1)
    assert same_bits(weights(run.model), weights(plain.model)) is (speedup > 1)


@pytest.mark.parametrize("samples", [None, 24])
def test_weak_corrections_are_told_with_what_to_type(samples, caplog):
    run = budgeted(max_overhead=0.001)
    run.engine.before_step = partial(run.engine.before_step, samples)
    with caplog.at_level(logging.INFO):
        (event,) = run.train(3).engine.ledger.events
    match = re.search(
        r"weak; for strong ones set batches (.*), or max_overhead=([\d.]+)$", event["reason"]
    )
    assert match is not None and event["reason"] in caplog.text
    assert not blocks(budgeted(max_overhead=float(match[2])).train(3)) & blocks(run)
    known = re.fullmatch(r"of at least ([\d,]+) samples \(now 24\)", match[1])
    factor = re.fullmatch(r"([\d.,]+) times as large", match[1])
    assert (known is None) == (samples is None) == (factor is not None)
    assert known is None or int(known[1].replace(",", "")) > 24


def test_a_run_that_falls_back_is_told_once_what_why_and_what_to_change(caplog):
    run = budgeted(max_overhead=0.001, speedup=1.5)
    with caplog.at_level(logging.INFO, "hybrid_predict.engine"):
        *_, event = run.train(3).engine.ledger.events
    words = rf"{FELL_BACK}batches are too small .* weak; set batches .*, or max_overhead=[\d.]+"
    assert re.fullmatch(words, event["reason"])
    assert caplog.messages[-1] == f"Full step 1: {event['reason']}."
    assert caplog.text.count("too small") == 1 and "at a time" not in caplog.text
