"""With a number as speedup, predicted steps lead as far as forecasts last."""

import pytest
import torch
from loops import Run, full_step, hurry, net, same_bits, weights

from hybrid_predict import FittedPredictor, HybridConfig, HybridEngine
from hybrid_predict.config import KINDS
from hybrid_predict.rules.gate import (
    NO_SKILL,
    NOT_LASTING,
    NOT_UPDATED,
    REST_STEPS,
    TOO_FEW,
    TOO_SHORT,
)
from hybrid_predict.rules.pace import LONGEST, weigh
from hybrid_predict.rules.skill import Skill
from hybrid_predict.rules.verdict import ENDED, RESTARTED, Evidence, Slopes

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


def groups_of(one, advance):
    """Groups of a run that believes that forecasts of every kind last."""
    one.train(2)
    hurry(one.engine, advance)
    return one.engine._groups


def drifts(one):
    """How far a predicted step moves each kind, in drifts."""
    groups, options = one.engine._groups, one.engine.optimizer.options()
    whole, found = groups.forecast(options).delta, {}
    for group in groups.predicted:
        once, made = group.forecast(options), whole.of(group.names)
        factors = zip(made.factors or [0.0] * len(once.factors), once.factors, strict=True)
        found[group.treatment.kind] = {round(OWN * float(m / o), 9) for m, o in factors}
    return found


def test_at_a_small_rate_all_kinds_move_far_and_the_plan_stays():
    one = run()
    plan, ledger = one.engine.schedule.planned, one.finish().engine.ledger
    assert ledger.predicted_steps == plan == 100
    assert ledger.mean_length > 1.5  # a fitted forecast is at most 1 long
    assert {kind for kind, skill in ledger.skills.items() if skill["advance"] > 0} == {
        "hidden", "head", "vector",
    }  # fmt: skip


@pytest.mark.parametrize("speedup", [1.25, 1.5, 3])
@pytest.mark.parametrize("advance", [0.0, 0.2, 0.5, 2.0, 16.0])
def test_an_advance_is_divided_among_the_predicted_steps_of_a_full_step(speedup, advance):
    one = run(speedup=speedup)
    groups_of(one, advance)
    wanted = round(min(LONGEST, advance / (speedup - 1)), 9)
    assert drifts(one) == {"hidden": {max(OWN, wanted)}, "head": {wanted}, "vector": {wanted}}


def test_each_kind_is_judged_by_the_slope_where_its_predicted_movement_ends(monkeypatch):
    one, gradients, ends = run(rate=1e-3), [], []

    def note(pace, slopes, end, *others):
        ends.append(end)
        return weigh(pace, slopes, end, *others)

    def keep(*_):
        gradients.append({n: p.grad.clone() for n, p in one.model.named_parameters()})

    monkeypatch.setattr("hybrid_predict.groups.scores.weigh", note)
    one.optimizer.register_step_pre_hook(keep)
    while len([r for r in one.records if r.predicted]) < 20:
        one.train(1)
    groups, steps = one.engine._groups, zip(one.records, one.between, gradients, strict=True)
    moved = [(move, gradient) for record, move, gradient in steps if record.predicted]
    names = {(g.treatment.kind, g.treatment.owner): g.names for g in groups.predicted}
    wanted = [
        float(sum((move[n] * gradient[n]).sum() for n in names.get(key, ())))
        for move, gradient in moved
        for key in groups.scores.paces
    ]
    assert len(ends) >= 5 * len(groups.scores.paces)
    assert ends == pytest.approx(wanted[: len(ends)], rel=1e-3, abs=1e-9)
    assert min(ends) < 0 < max(ends)


@pytest.mark.parametrize("predictor", ["fitted", "momentum", FittedPredictor(gated=False)])
def test_kinds_that_a_user_names_move_by_one_forecast(predictor):
    one = run(predictors={"hidden": predictor, "head": predictor})
    groups = groups_of(one, 2.0)
    groups.scores.paces.clear()  # such a run measures none
    assert drifts(one) == {"hidden": {OWN}, "head": {OWN}}
    groups.scores.skills.clear()
    groups._update_gate()
    assert bool(groups.gate.blocked) == groups.gate.gated


def test_other_kinds_need_skill_of_their_own_and_cannot_take_the_place_of_hidden_matrices():
    groups = groups_of(run(), 2.0)
    for without in KINDS:
        skilled = {kind: Skill(windows=2, mean=0.5, length=OWN) for kind in KINDS}
        groups.scores.skills = {**skilled, without: Skill()}
        groups._update_gate()
        blocked = {g.treatment.kind for g in groups if g.names in groups.gate.blocked}
        every = {group.treatment.kind for group in groups}
        assert blocked == (every if without == "hidden" else {without} & every)
        assert groups.gate.closed == (without == "hidden")


FEW_HIDDEN = {"2.weight": "head"}
"""Kinds with which hidden matrices have 192 of 841 weights."""


def test_with_few_hidden_weights_the_other_kinds_make_up_for_them():
    one = run(kinds=FEW_HIDDEN).finish()
    assert one.engine.ledger.predicted_steps == one.engine.schedule.planned == 100
    assert TOO_FEW not in one.reasons


def skills(*kinds, short=()):
    """Skill of forecasts of these kinds, and of others that are too short."""
    good = Skill(windows=2, mean=0.5, length=OWN)
    return {**dict.fromkeys(kinds, good), **dict.fromkeys(short, good._replace(length=0.1))}


@pytest.mark.parametrize(
    ("known", "advance", "reason"),
    [
        (skills(*KINDS), 2.0, ""),
        (skills("hidden", "head"), 2.0, ""),
        (skills("head", "vector"), 2.0, ""),
        (skills(*KINDS), 0.0, NOT_LASTING),
        (skills("hidden", "vector"), 2.0, NO_SKILL),
        (skills("hidden", short=["head"]), 2.0, TOO_SHORT),
    ],
)
def test_they_need_skill_and_forecasts_that_last(known, advance, reason):
    groups = groups_of(run(kinds=FEW_HIDDEN), advance)
    groups.scores.skills = known
    groups._update_gate()
    assert groups.gate.closed == bool(reason)
    assert not reason or groups.gate.reason == reason
    still = {g.treatment.kind for g in groups if g.names in groups.gate.blocked}
    assert still == {"hidden", "head", "vector"} - set(() if reason else known)


def test_weights_that_a_full_step_does_not_update_are_not_ready_for_a_while():
    model = net(8, 24, 24, 1)
    optimizers = [torch.optim.SGD(model[k].parameters(), lr=1e-5) for k in (0, 2, 4)]
    engine = HybridEngine(model, optimizers, HybridConfig(**SETTINGS, kinds=FEW_HIDDEN))
    gates = []
    for k in range(80):
        updating = [optimizers[0], optimizers[2]] if k in (4, 5) else optimizers
        record = full_step(engine, updating, lambda k=k: regression(model, k))
        if k == 2:
            hurry(engine, 2.0)
        moved = {name for name in record.gradients.alignments if record.predicted}
        gates.append(engine._groups.gate)
        assert not moved or "2.weight" in moved
    closed = [gate for gate in gates[4:] if gate.closed]
    assert [gate.closed for gate in gates[4:]] == [True] * (REST_STEPS + 1) + [False] * 11
    assert {gate.reason for gate in closed} == {NOT_UPDATED}
    assert engine.ledger.predicted_steps > 0


def still_while(model, k, without):
    """A loss that reaches the first layers only outside of the steps ``without``."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(32, 8, generator=generator)
    with torch.set_grad_enabled(k not in without):
        hidden = model[:4](x)
    return (model[4:](hidden) - x.sum(1, keepdim=True).sin()).square().mean()


@pytest.mark.parametrize("gated", [True, False])
def test_matrices_without_any_gradient_stay_although_their_optimizer_updates(gated):
    without, model = range(60, 80), net(8, 24, 24, 1)
    config = HybridConfig(**SETTINGS, predictors={"hidden": FittedPredictor(gated=gated)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    engine, predicted, matrices = HybridEngine(model, optimizer, config), [], []
    for k in range(160):
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


@pytest.mark.parametrize("kind", ["fitted", FittedPredictor(gated=False)])
@pytest.mark.parametrize("thawed", [(2,), (2, 4)], ids=["one of two heads", "both heads"])
def test_weights_that_train_anew_are_ready_after_their_first_full_step(thawed, kind):
    one = run(kinds=FEW_HIDDEN, predictors=dict.fromkeys(("hidden", "head", "vector"), kind))
    anew = [one.model[k].weight for k in thawed]
    for weight in anew:
        weight.requires_grad_(False)
    groups = groups_of(one, 2.0)
    one.train(1)
    assert not groups.gate.blocked
    for weight in anew:
        weight.requires_grad_(True)
    groups.refresh()
    heads = [g for g in groups if g.treatment.kind == "head"]
    assert groups.gate.resting == {group.names for group in heads} <= groups.gate.blocked
    one.train(1)
    assert not groups.gate.blocked
    for weight in anew:
        weight.requires_grad_(False)
    groups.refresh()
    assert not groups.gate.blocked  # nothing is new where weights were frozen


def test_a_layer_with_an_optimizer_of_its_own_is_ready_after_its_first_full_step():
    model = net(8, 24, 24, 1)
    optimizers = [torch.optim.SGD(model[k].parameters(), lr=1e-5) for k in (0, 2, 4)]
    engine = HybridEngine(model, optimizers, HybridConfig(**SETTINGS, kinds=FEW_HIDDEN))
    model[2].requires_grad_(False)
    closed = []
    for k in range(10):
        if k == 5:
            model[2].requires_grad_(True)
        full_step(engine, optimizers, lambda k=k: regression(model, k))
        hurry(engine, 2.0)
        closed.append(engine._groups.gate.closed)
    assert closed == [False] * 10


def test_a_failed_test_closes_the_gate_until_forecasts_last_again():
    groups = groups_of(run(kinds=FEW_HIDDEN), 2.0)
    slopes = Slopes(-1.0, 1.0, -1.0, 1.0)
    groups.weigh(slopes, {}, 1, refuted=False)
    assert not groups.gate.closed
    groups.weigh(slopes, {}, 1, refuted=True)
    assert groups.gate.closed and groups.gate.reason == NOT_LASTING


@pytest.mark.parametrize(("advance", "event"), [(0.0, ENDED), (1.0, RESTARTED)])
def test_a_failed_test_ends_predicted_steps_unless_forecasts_had_lasted(
    monkeypatch, advance, event
):
    one = run(rate=1e-2)
    while not one.records or not one.records[-1].predicted:
        one.train(1)
    scores = one.engine._groups.scores
    scores.paces = {key: pace._replace(advance=advance) for key, pace in scores.paces.items()}
    monkeypatch.setattr("hybrid_predict.state.weigh", lambda *_: Evidence(ended=1))
    verdicts = len([r for r in one.records if r.predicted])
    while len([r for r in one.records if r.predicted]) == verdicts:
        one.train(1)
    assert event in one.reasons
    assert bool(one.engine._state.evidence.ended) == (event == ENDED)
    assert not any(pace.advance for pace in scores.paces.values())
