"""Predicted steps are made with skill only, kind by kind; what is not made is still scored."""

import pytest
import torch
from loops import Bench, Run, hurry, make_config, net
from torch import nn

from benchmarks.placebos import NegatedForecast
from hybrid_predict import MomentumPredictor
from hybrid_predict.config import KINDS
from hybrid_predict.ledger import Phase
from hybrid_predict.policy.confidence import Confidence, Skill


def gated(**changes):
    return make_config(**{"total_steps": 200, "speedup": 1.5, **changes})


def moved_by(records):
    """Names of what predicted steps have moved."""
    return {name for r in records if r.gradients for name in r.gradients.alignments}


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


def test_each_kind_is_gated_by_its_own_skill():
    predictors = {"hidden": NegatedForecast(), "vector": MomentumPredictor(gated=False)}
    bench = Bench(gated(predictors=predictors, total_steps=100))
    records = bench.finish()
    moved = moved_by(records)
    assert moved and all(name.endswith("bias") for name in moved)
    assert bench.engine.ledger.predicted_steps > 20


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


def show(engine, mean=0.5, length=0.5, kinds=("hidden",)):
    """Make it believe that its forecasts have this skill and length."""
    policy = engine._policy
    for kind in kinds:
        skill = Skill(count=16, mean=mean)
        policy.confidences[kind, 0] = Confidence(skill=skill, best=length)
    policy.decide()


def test_skill_that_is_lost_stops_predicted_steps_and_skill_that_comes_back_resumes_them():
    bench = Bench(gated(predictors={"hidden": "momentum"}, total_steps=200))
    bench.train(45)
    for mean in (0.5, -0.5, 0.5):
        show(bench.engine, mean)
        assert any(r.predicted for r in bench.train(10)) is (mean > 0)


def test_only_kinds_with_a_pace_move():
    bench = Bench(make_config(total_steps=400, speedup="auto"))
    hurry(bench.engine, advance=1.0)
    bench.engine._policy.confidences["head", 0].advance = 0.0
    kinds = dict(zip(bench.engine.mapper.names, bench.engine.mapper.kinds, strict=True))
    moved = {kinds[name] for name in moved_by(bench.train(8))}
    assert moved == set(KINDS) - {"head", "embedding"}


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


class Flat(nn.Module):
    """Two matrices, a matrix that is stored as a vector, and a table."""

    def __init__(self, flat, words, trained):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.flat = nn.Parameter(torch.ones(flat * 8) / flat, requires_grad=trained)
        self.table = nn.Embedding(words, 8)

    def forward(self, x):
        x = torch.tanh(self.first(x)) + self.table(torch.arange(len(x)))
        wide = torch.sin(x @ self.flat.view(8, -1))
        return self.out(torch.tanh(self.second(x)) + wide.sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("flat", "words", "kinds", "trained", "moves"),
    [
        (8, 16, ("hidden",), True, True),
        (80, 16, ("hidden",), True, False),
        (80, 16, ("hidden",), False, True),
        (8, 1600, ("hidden",), True, True),
    ],
    ids=["few vectors", "mostly vectors", "frozen ones", "a large table"],
)
def test_predicted_steps_move_a_quarter_of_the_trained_weights_outside_tables(
    flat, words, kinds, trained, moves
):
    torch.manual_seed(0)
    model = Flat(flat, words, trained)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    run = Run(model, optimizer, gated(predictors=dict.fromkeys(kinds, "momentum")), near_one)
    for _ in range(45):
        run.step()
        show(run.engine, kinds=kinds)
    assert (run.engine.ledger.predicted_steps > 0) is moves
    assert any("would move less" in reason for reason in run.reasons) is not moves
