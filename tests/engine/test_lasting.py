"""With a number as speedup, predicted steps lead as far as forecasts last."""

import pytest
import torch
from loops import Run, full_step, hurry, net

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.groups.group import REST_STEPS
from hybrid_predict.policy.policy import NOT_UPDATED

SETTINGS = {"total_steps": 300, "max_overhead": 1e9}


def regression(model, k):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(32, 8, generator=generator)
    return (model(x) - x.sum(1, keepdim=True).sin()).square().mean()


def run(rate=1e-5, **settings):
    model = net(8, 24, 24, 1)
    config = HybridConfig(**{**SETTINGS, **settings})
    return Run(model, torch.optim.AdamW(model.parameters(), lr=rate), config, regression)


def believing(one, advance):
    """The policy of a run that believes that forecasts of every kind last."""
    one.train(2)
    hurry(one.engine, advance)
    return one.engine._policy


def test_at_a_small_rate_all_kinds_move_far_and_the_plan_stays():
    one = run()
    plan, ledger = one.engine.schedule.planned, one.finish().engine.ledger
    assert ledger.predicted_steps == plan == 100
    assert ledger.mean_length > 1.5  # a fitted forecast is at most 1 long
    assert {kind for kind, skill in ledger.skills.items() if skill["advance"] > 0} == {
        "hidden", "head", "vector",
    }  # fmt: skip


FEW_HIDDEN = {"2.weight": "head"}
"""Kinds with which hidden matrices have 192 of 841 weights."""


def test_weights_that_a_full_step_does_not_update_are_not_ready_for_a_while():
    model = net(8, 24, 24, 1)
    optimizers = [torch.optim.SGD(model[k].parameters(), lr=1e-5) for k in (0, 2, 4)]
    engine = HybridEngine(model, optimizers, HybridConfig(**SETTINGS, kinds=FEW_HIDDEN))
    closed = []
    for k in range(80):
        updating = [optimizers[0], optimizers[2]] if k in (4, 5) else optimizers
        record = full_step(engine, updating, lambda k=k: regression(model, k))
        if k == 2:
            hurry(engine, 2.0)
        moved = {name for name in record.gradients.alignments if record.predicted}
        closed.append(engine._policy.closed and engine._policy.reason)
        assert not moved or "2.weight" in moved
    assert closed[4:] == [NOT_UPDATED] * (REST_STEPS + 1) + [False] * 11
    assert engine.ledger.predicted_steps > 0


@pytest.mark.parametrize("thawed", [(2,), (2, 4)], ids=["one of two heads", "both heads"])
def test_weights_that_train_anew_are_ready_after_their_first_full_step(thawed):
    one = run(kinds=FEW_HIDDEN, predictors=dict.fromkeys(("hidden", "head", "vector"), "fitted"))
    anew = [one.model[k].weight for k in thawed]
    for weight in anew:
        weight.requires_grad_(False)
    policy = believing(one, 2.0)
    one.train(1)
    assert not policy.blocked
    for weight in anew:
        weight.requires_grad_(True)
    one.engine._groups.refresh()
    resting = {part for part in policy.parts if part.resting}
    assert {part.kind for part in resting} == {"head"} and resting <= policy.blocked
    one.train(1)
    assert not policy.blocked
    for weight in anew:
        weight.requires_grad_(False)
    one.engine._groups.refresh()
    assert not policy.blocked  # nothing is new where weights were frozen
