"""A run of N steps takes fewer full steps, and weights move between them as forecast."""

import pytest
import torch
from cases import UNGATED
from loops import Bench, Run, load, make_config, net, normal, same_bits, save

from hybrid_predict import HybridConfig


def test_a_run_of_300_steps_takes_200_full_steps():
    def loss(model, k):
        x = normal(k, 16, 5)
        found = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        found.register_hook(backwards.append)
        return found

    backwards, model = [], net(5, 12, 12, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = HybridConfig(speedup=1.5, total_steps=300, max_overhead=100.0, predictors=UNGATED)
    run = Run(model, optimizer, config, loss).finish()
    ledger = run.engine.ledger
    assert (len(run.records), len(backwards), ledger.full_steps) == (200, 200, 200)
    assert (ledger.steps, ledger.predicted_steps, ledger.undone_steps) == (300, 100, 0)
    moved = [any(m.any() for m in step.values()) for step in run.between]
    assert moved == [record.predicted > 0 for record in run.records]
    assert {record.predicted for record in run.records} == {0, 1}
    assert [r.ticks for r in run.records] == [1 + r.predicted for r in run.records]
    assert ledger.saved_steps_fraction == pytest.approx(1 / 3)
    assert ledger.corrected_steps == 200  # the cooldown's too


def test_full_steps_after_the_last_step_are_plain_training_and_tick_nothing():
    bench = Bench(make_config())
    assert sum(record.ticks for record in bench.finish()) == 30
    saved = save(bench)
    records = bench.train(5)
    assert {(r.ticks, r.phase.value, r.predicted) for r in records} == {(0, "plain", 0)}
    plain = load(saved, None)
    plain.train(5)
    assert same_bits(dict(bench.model.state_dict()), dict(plain.model.state_dict()))
    (told,) = [e for e in bench.engine.ledger.events if "leave the loop" in e["reason"]]
    assert told["count"] == 5
    assert bench.engine.ledger.steps == 35  # what was done beyond the run is not hidden
