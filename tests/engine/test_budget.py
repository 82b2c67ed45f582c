"""Corrections stay within ``max_overhead``: as many rows at a time as the budget allows."""

import logging
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, MomentumPredictor, SpectralUpdate
from hybrid_predict.rules import budget
from hybrid_predict.updates import UPDATES

BATCH = 16


@pytest.fixture(autouse=True)
def every_operation_counts(monkeypatch):
    monkeypatch.setattr(budget, "SMALLEST_STEP", 0.0)


class Loop:
    """A small network in a plain loop."""

    def __init__(self, steps=40, seed=0, freeze=False, **options):
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Linear(48, 4))
        self.net[2].weight.requires_grad_(not freeze)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        config = HybridConfig(**{"total_steps": steps, "speedup": 1, **options})
        self.engine = HybridEngine(self.net, self.optimizer, config)
        self.batches, self.target = torch.randn(steps, BATCH, 8), torch.randn(BATCH, 4)

    def train(self, first, last):
        for k in range(first, last):
            self.engine.before_step()
            loss = (self.net(self.batches[k]) - self.target).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.engine.after_step(loss)
        return self

    @property
    def blocks(self):
        return {group.memory.update.block for group in self.engine._state.groups}

    def weights(self):
        return [p.detach().clone() for p in self.net.parameters()]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("limit", [0.0, 0.1, 1.0, 1e9])
def test_what_correcting_takes_is_the_most_that_the_budget_allows(limit, update):
    loop = Loop(max_overhead=limit, updates={"hidden": update}).train(0, 3)
    ledger = loop.engine.ledger
    assert ledger.flops_per_step > 0
    assert ledger.correction_share <= limit
    (block,) = loop.blocks
    share = [sum(g.operations(b) for g in loop.engine._state.groups) / ledger.flops_per_step
             for b in (block, 2 * block if block else None)]  # fmt: skip
    assert share[0] == ledger.correction_share
    assert block is None or share[1] > limit


def test_what_is_not_whitened_is_told():
    loop = Loop(max_overhead=1.0, updates={"hidden": "whitened"}).train(0, 2)
    (block,) = loop.blocks
    assert f"; sides longer than {block // 2} are not" in loop.engine.ledger.events[0]["reason"]


@pytest.mark.parametrize(("limit", "told"), [(0.1, True), (1e9, False)])
def test_what_the_budget_changes_is_told_once_and_counted(limit, told, caplog):
    with caplog.at_level(logging.INFO):
        events = Loop(max_overhead=limit).train(0, 5).engine.ledger.events
    found = [e for e in events if "max_overhead=0.1" in e["reason"]]
    assert len(found) == caplog.text.count("max_overhead=0.1 allows") == told
    assert [(e["step"], e["count"]) for e in found] == [(1, 1)] * told


def test_the_first_correction_is_within_the_budget_already():
    few, same, many = (Loop(max_overhead=limit) for limit in (0.0, 0.001, 1e9))
    for loop in (few, same, many):
        loop.train(0, 1)
    assert all(map(torch.equal, few.weights(), same.weights()))
    assert not all(map(torch.equal, few.weights(), many.weights()))


def test_a_resumed_run_has_the_same_budget():
    whole = Loop().train(0, 20)
    half = Loop().train(0, 9)
    other = Loop(seed=1)
    other.net.load_state_dict(half.net.state_dict())
    other.optimizer.load_state_dict(half.optimizer.state_dict())
    other.batches, other.target = half.batches, half.target
    other.engine.load_state_dict(half.engine.state_dict())
    assert other.blocks == half.blocks != {None}
    other.train(9, 20)
    assert all(map(torch.equal, whole.weights(), other.weights()))


def test_matrices_that_are_thawed_share_the_budget():
    loop = Loop(freeze=True).train(0, 3)
    before = loop.engine.ledger.correction_share
    loop.net[2].weight.requires_grad_(True)
    loop.train(3, 5)
    budget = 0.1 * loop.engine.ledger.flops_per_step
    groups = loop.engine._state.groups
    assert len(loop.blocks) == 1
    assert before <= 0.1
    assert sum(g.operations(b) for g, b in zip(groups, loop.blocks, strict=True)) <= budget


def test_where_nothing_can_be_counted_matrices_are_corrected_in_full():
    loop = Loop(max_overhead=0.0)
    loop.net.compile(backend="eager")
    loop.train(0, 3)
    torch._dynamo.reset()
    assert loop.engine.ledger.flops_per_step is None
    assert loop.blocks == {None}


@dataclass(frozen=True, kw_only=True)
class Dear(SpectralUpdate):
    """An update that costs the same however few rows are treated together."""

    def operations(self, like, block):
        return 10**9


def test_a_budget_that_cannot_be_kept_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        loop = Loop(updates={"hidden": Dear()}).train(0, 3)
    assert "operations, more than max_overhead=0.1 allows" in caplog.text
    assert loop.engine.ledger.flops_per_correction == 10**9


@pytest.mark.parametrize(
    ("limit", "gated", "predicted"),
    [(0.0, True, False), (0.0, False, True), (1e9, True, True)],
)
def test_weak_corrections_make_up_for_no_predicted_steps(limit, gated, predicted):
    predictor = MomentumPredictor(gated=gated)
    loop = Loop(200, max_overhead=limit, speedup=1.5, predictors={"hidden": predictor})
    loop.batches = loop.batches[:1].expand(200, -1, -1)
    while not loop.engine.done:
        loop.train(loop.engine.ledger.full_steps, loop.engine.ledger.full_steps + 1)
    ledger = loop.engine.ledger
    assert bool(ledger.predicted_steps) is predicted
    told = any("too weak" in event["reason"] for event in ledger.events)
    assert told is (limit == 0.0 and gated)
    assert ledger.steps == 200


def test_several_updates_in_one_full_step_share_the_budget():
    loop = Loop(max_overhead=0.5)
    for _ in range(3):
        loop.engine.before_step()
        for _ in range(4):
            loss = (loop.net(loop.batches[0]) - loop.target).square().mean()
            loss.backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        loop.engine.after_step(loss)
    (block,) = loop.blocks
    once = sum(g.operations(block) for g in loop.engine._state.groups)
    ledger = loop.engine.ledger
    assert ledger.flops_per_correction == 4 * once
    assert 0 < ledger.correction_share <= 0.5


@pytest.mark.parametrize("steps", [None, 5])
def test_a_budget_is_kept_where_somebody_else_has_counted_further(steps):
    half = Loop().train(0, 3)
    other = Loop()
    other.engine.load_state_dict(half.engine.state_dict(), steps=steps)
    assert other.blocks == half.blocks != {None}


def test_after_a_step_that_was_abandoned_the_next_one_is_counted():
    loop = Loop()
    loop.engine.before_step()
    loop.net(loop.batches[0])
    loop.engine.abandon()
    loop.train(0, 2)
    assert loop.engine.ledger.flops_per_step == Loop().train(0, 2).engine.ledger.flops_per_step
    assert loop.blocks != {None}


def test_weights_in_64_bits_keep_them_whatever_averages_are_stored_in():
    loop = Loop(history_dtype="bfloat16", total_steps=40)
    loop.net.double()
    loop.batches, loop.target = loop.batches.double(), loop.target.double()
    loop.optimizer = torch.optim.AdamW(loop.net.parameters(), lr=1e-3)
    config = HybridConfig(total_steps=40, speedup=1, history_dtype="bfloat16")
    loop.engine.detach()
    loop.engine = HybridEngine(loop.net, loop.optimizer, config)
    loop.train(0, 3)
    assert not any(torch.equal(p, p.float().double()) for p in loop.weights())


def test_small_models_are_corrected_in_full(monkeypatch):
    monkeypatch.undo()
    loop = Loop().train(0, 3)
    assert loop.blocks == {None}
    assert loop.engine.ledger.correction_share > 0.1
    assert Loop(max_overhead=0.0).train(0, 3).blocks == {1}


@pytest.mark.parametrize(("speedup", "corrected"), [(1.5, 0), (1, 20)])
def test_a_run_with_weak_corrections_alone_is_plain_after_its_first_step(speedup, corrected):
    loop = Loop(40, max_overhead=0.0, speedup=speedup).train(0, 20)
    engine = loop.engine
    assert engine.ledger.corrected_steps == corrected
    assert engine._state.plain is (speedup > 1)
    assert bool(list(engine._state.groups)) is (speedup == 1)


def test_a_run_that_fell_back_for_its_budget_is_the_plain_one():
    loop, plain = Loop(40, max_overhead=0.0, speedup=1.5), Loop(40, enabled=False)
    for each in (loop, plain):
        each.train(0, 40)
        assert each.engine.ledger.steps == 40
    assert all(map(torch.equal, loop.weights(), plain.weights()))
