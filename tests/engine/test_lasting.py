"""With a number as speedup, predicted steps lead as far as forecasts last."""

import pytest
import torch
from loops import Run, full_step, hurry, net, same_bits, weights

from hybrid_predict import FittedPredictor, HybridConfig, HybridEngine
from hybrid_predict.config import KINDS
from hybrid_predict.groups.group import REST_STEPS
from hybrid_predict.policy.confidence import LONGEST, Confidence, Skill
from hybrid_predict.policy.policy import (
    NO_SKILL,
    NOT_LASTING,
    NOT_UPDATED,
    TOO_SHORT,
)

OWN = 0.8
"""Length of one forecast in drifts that `hurry` sets."""


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


def drifts(one):
    """How far a predicted step moves each kind, in drifts."""
    groups, options = one.engine._groups, one.engine.optimizer.options()
    (whole, _, _), _ = groups.forecast(options)
    found = {}
    for group in groups.predicted:
        once, _ = group.forecast(options)
        made = whole.of(group.names)
        factors = zip(made.factors or [0.0] * len(once.factors), once.factors, strict=True)
        found[group.treatment.kind] = {round(float(m / o), 9) for m, o in factors}
    return found


def test_at_a_small_rate_all_kinds_move_far_and_the_plan_stays():
    one = run()
    plan, ledger = one.engine.schedule.planned, one.finish().engine.ledger
    assert ledger.predicted_steps == plan == 100
    assert ledger.mean_length > 1.5  # a fitted forecast is at most 1 long
    assert {kind for kind, skill in ledger.skills.items() if skill["advance"] > 0} == {
        "hidden", "head", "vector",
    }  # fmt: skip


@pytest.mark.parametrize(("speedup", "advance"), [(1.25, 0.0), (1.5, 2.0), (3, 16.0)])
def test_an_advance_is_divided_among_the_predicted_steps_of_a_full_step(speedup, advance):
    one = run(speedup=speedup)
    believing(one, advance)
    wanted = round(min(LONGEST, advance / (speedup - 1)), 9)
    assert drifts(one) == {"hidden": {max(OWN, wanted)}, "head": {wanted}, "vector": {wanted}}


def test_each_kind_is_judged_by_the_slope_where_its_predicted_movement_ends(monkeypatch):
    one, gradients, ends = run(rate=1e-3), [], []
    weigh = Confidence.weigh

    def note(confidence, slopes, end, predicted):
        ends.append(end)
        weigh(confidence, slopes, end, predicted)

    def keep(*_):
        gradients.append({n: p.grad.clone() for n, p in one.model.named_parameters()})

    monkeypatch.setattr(Confidence, "weigh", note)
    one.optimizer.register_step_pre_hook(keep)
    while len([r for r in one.records if r.predicted]) < 20:
        one.train(1)
    groups, steps = one.engine._groups, zip(one.records, one.between, gradients, strict=True)
    moved = [(move, gradient) for record, move, gradient in steps if record.predicted]
    names = {part.key: group.names for group, part in groups._parts()}
    wanted = [
        float(sum((move[n] * gradient[n]).sum() for n in names[key]))
        for move, gradient in moved
        for key in one.engine._policy.confidences
    ]
    assert len(ends) >= 5 * len(names)
    assert ends == pytest.approx(wanted[: len(ends)], rel=1e-3, abs=1e-8)
    assert min(ends) < 0 < max(ends)


@pytest.mark.parametrize(
    ("predictor", "length"),
    [(FittedPredictor(gated=False), OWN), ("momentum", 1.0)],
)
def test_kinds_that_a_user_names_move_by_one_forecast(predictor, length):
    one = run(predictors={"hidden": predictor, "head": predictor})
    policy = believing(one, 0.0)  # such a run measures no advance
    for confidence in policy.confidences.values():
        confidence.fits = predictor != "momentum"
    assert drifts(one) == {"hidden": {length}, "head": {length}}
    policy.confidences.clear()
    policy.decide()
    assert bool(policy.blocked) == policy.gated


FEW_HIDDEN = {"2.weight": "head"}
"""Kinds with which hidden matrices have 192 of 841 weights."""


@pytest.mark.parametrize(
    ("skilled", "short", "advance", "reason"),
    [
        (("head", "vector"), (), 2.0, ""),
        (KINDS, (), 0.0, NOT_LASTING),
        (("hidden", "vector"), (), 2.0, NO_SKILL),
        (("hidden",), ("head",), 2.0, TOO_SHORT),
    ],
)
def test_they_need_skill_and_forecasts_that_last(skilled, short, advance, reason):
    policy = believing(run(kinds=FEW_HIDDEN), advance)
    for (kind, _), confidence in policy.confidences.items():
        confidence.skill = confidence.skill if kind in (*skilled, *short) else Skill()
        confidence.best = 0.1 if kind in short else OWN
    policy.decide()
    assert policy.closed == bool(reason)
    assert not reason or policy.reason == reason
    still = {part.kind for part in policy.blocked}
    assert still == {"hidden", "head", "vector"} - set(() if reason else skilled)


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


def still_while(model, k, without):
    """A loss that reaches the first layers only outside of the steps ``without``."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(32, 8, generator=generator)
    with torch.set_grad_enabled(k not in without):
        hidden = model[:4](x)
    return (model[4:](hidden) - x.sum(1, keepdim=True).sin()).square().mean()


def test_matrices_without_any_gradient_stay_although_their_optimizer_updates():
    without, model = range(20, 30), net(8, 24, 24, 1)
    config = HybridConfig(**SETTINGS, predictors={"hidden": FittedPredictor(gated=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    engine, predicted, matrices = HybridEngine(model, optimizer, config), [], []
    for k in range(110):
        record = full_step(engine, [optimizer], lambda k=k: still_while(model, k, without))
        hurry(engine, 2.0)
        predicted.append(record.predicted > 0)
        matrices.append(weights(model[:4]))
    for k in without[2:]:
        assert same_bits(matrices[k], matrices[without[1]])
    rest = range(without.start + 1, without.stop + REST_STEPS)
    assert not any(predicted[k] for k in rest)
    assert sum(predicted[: rest.start]) > 1 < sum(predicted[rest.stop :])
    assert NOT_UPDATED in {event["reason"] for event in engine.ledger.events}


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
