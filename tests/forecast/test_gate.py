"""Predicted steps are made with skill only, kind by kind; what is not made is still scored."""

import torch
from loops import Bench, Run, make_config, net

from benchmarks.placebos import NegatedForecast
from hybrid_predict.ledger import Phase


def gated(**changes):
    return make_config(**{"total_steps": 200, "speedup": 1.5, **changes})


def test_the_warm_up_lasts_until_skill_is_known():
    assert Bench(make_config()).engine.schedule.warmup == 2
    bench = Bench(gated(predictors={"hidden": "momentum"}))
    records = bench.train(45)
    known = [r.step for r in records if r.skill is not None]
    assert known[0] == 40  # two windows: the first opens after half its length
    assert all(r.phase is Phase.WARMUP and not r.predicted for r in records[:40])
    assert all(r.phase is not Phase.WARMUP for r in records[40:])


def test_without_skill_full_steps_are_taken_and_the_run_stays_as_long():
    bench = Bench(gated(predictors={"hidden": NegatedForecast()}, total_steps=100))
    records = bench.finish()
    ledger = bench.engine.ledger
    assert (ledger.full_steps, ledger.steps, ledger.predicted_steps) == (100, 100, 0)
    assert ledger.skill < 0
    assert ledger.skills["hidden"]["windows"] == 5  # scored to the end
    event = ledger.events[-1]
    assert "not shown enough skill" in event["reason"]
    assert event["count"] > 10
    assert all(r.ticks == 1 for r in records)


def near_one(model, k):
    return (model(torch.randn(16, 6)) - 1.0).square().mean()


def test_tensors_of_one_kind_and_optimizer_count_together():
    model = net(6, 8, 8, 3)
    optimizers = [torch.optim.AdamW(model[k].parameters(), lr=0.01) for k in (0, 2, 4)]
    run = Run(model, optimizers, gated(predictors={"hidden": "momentum"}), near_one).train(50)
    assert all((record.skill is not None) is (record.step >= 40) for record in run.records)
    ledger = run.engine.ledger
    assert ledger.skills["hidden"]["windows"] == ledger.full_steps // 20
    assert len(run.engine._policy.confidences) == 2


def test_the_first_window_after_a_layer_was_frozen_for_a_while_changes_no_pace():
    bench = Bench(make_config(total_steps=400, speedup="auto"))
    bench.train(60)
    layer, *_ = bench.model.children()
    for trained in (False, True):
        layer.requires_grad_(trained)
        bench.step()
    ledger = bench.engine.ledger
    before = found = ledger.skills["hidden"]
    while found["windows"] == before["windows"]:
        bench.step()
        found = ledger.skills["hidden"]
    assert (found["advance"], found["persistence"]) == (before["advance"], before["persistence"])
    bench.train(40)
    assert ledger.skills["hidden"]["persistence"] != before["persistence"]
