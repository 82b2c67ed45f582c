"""What changes in mid-run is followed from the next full step on, and no update is lost."""

import copy

import pytest
import torch
from cases import EVERY_KIND, UNGATED
from loops import make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, Phase, UsageError
from hybrid_predict.groups import Groups


def net():
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(16, 1))


class Run:
    """A run that notes which weights move inside a full step and between two."""

    def __init__(self, model, optimizer, config=None):
        self.model, self.optimizer = model, optimizer
        self.engine = HybridEngine(model, optimizer, config or make_config(total_steps=90))
        self.taken = 0

    def step(self):
        base = weights(self.model)
        self.engine.before_step()
        opened = weights(self.model)
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(self.taken))
        loss = (self.model(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1
        self.record = self.engine.after_step(loss)
        now = weights(self.model)
        self.between = {n for n in base if not torch.equal(base[n], opened[n])}
        self.inside = {n for n in base if not torch.equal(opened[n], now[n])}
        return self.record

    def until_predicted(self):
        while not self.step().predicted:
            pass
        return self


def adamw(ps, **options):
    return torch.optim.AdamW(ps, lr=0.01, weight_decay=0.0, **options)


def sgd(ps):
    return torch.optim.SGD(ps, lr=0.01)


@pytest.mark.parametrize("make", [adamw, sgd])
def test_a_frozen_parameter_stands_still_and_moves_again_when_unfrozen(make):
    model = net()
    run = Run(model, make(model.parameters()))
    for _ in range(6):
        run.step()
    model[2].weight.requires_grad_(False)
    for _ in range(6):
        run.step()
        assert "2.weight" not in run.inside | run.between
        assert run.inside >= {"0.weight", "4.weight", "6.weight"}
    assert run.until_predicted().between >= {"0.weight", "4.weight"}
    model[2].weight.requires_grad_(True)
    run.step()
    assert "2.weight" in run.inside
    run.until_predicted()
    assert "2.weight" in run.until_predicted().between


def test_what_is_known_of_the_others_is_kept():
    """Frozen and unfrozen again at once, the rest of the model is predicted as if nothing was."""
    moved = []
    for freeze in (False, True):
        model = net()
        run = Run(model, adamw(model.parameters()))
        for _ in range(7):
            run.step()
        model[6].weight.requires_grad_(not freeze)
        groups = [g for g in run.engine._state.groups if g.treatment.kind == "hidden"]
        run.engine._state.groups.refresh()
        after = [g for g in run.engine._state.groups if g.treatment.kind == "hidden"]
        drift = [g.memory.history.arrays["drift"] for g in after]
        moved.append(copy.deepcopy(drift))
        assert [g.names for g in groups] == [g.names for g in after]
    assert same_bits(*moved)


def test_a_parameter_group_that_is_added_is_followed():
    model = net()
    model[2].requires_grad_(False)
    first = [p for p in model.parameters() if p.requires_grad]
    optimizer = adamw(first)
    run = Run(model, optimizer)
    for _ in range(6):
        run.step()
    assert "2.weight" not in run.engine.mapper.names
    model[2].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.001})
    run.step()
    assert "2.weight" in run.inside
    assert "2.weight" in run.engine.mapper.names
    run.until_predicted()
    assert run.until_predicted().between >= {"0.weight", "2.weight", "4.weight"}
    assert run.engine._state.groups.length_bound(run.engine.optimizer.all_options()) == 1.0


def test_a_parameter_that_is_given_other_memory_is_followed():
    model = net()
    run = Run(model, adamw(model.parameters()))
    for _ in range(6):
        run.step()
    for p in model.parameters():
        p.data = p.data.clone()
    for _ in range(6):
        run.step()
        assert run.inside == set(weights(model))
    assert run.until_predicted().between >= {"0.weight", "2.weight"}


def replaced(told, make=sgd, steps=40):
    """A run whose optimizer is replaced half-way; its updates, and those of a loop without."""
    model = net()
    run = Run(model, adamw(model.parameters()), HybridConfig(total_steps=90, predictors=UNGATED))
    for _ in range(steps // 2):
        run.step()
    run.optimizer = make(model.parameters())
    if told:
        run.engine.replace_optimizer(run.optimizer)
    still = 0
    for _ in range(steps // 2):
        run.step()
        still += run.inside != set(weights(model))
    return run, still


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_no_update_of_another_optimizer_is_lost(told):
    run, still = replaced(told)
    assert still == 0
    assert run.engine.ledger.full_steps == 40
    undone = run.engine.ledger.undone_steps
    assert undone == 0 if told else undone > 0


def test_updates_of_an_unknown_optimizer_are_the_user_s_own():
    """The engine knows nothing of them: predicted steps are taken back around them."""
    run, _ = replaced(told=False)
    twin = copy.deepcopy(run.model)
    before = weights(run.model)
    other = sgd(twin.parameters())
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(run.taken))
    base = weights(run.model)
    run.engine.before_step()
    with torch.no_grad():
        for p, q in zip(twin.parameters(), run.model.parameters(), strict=True):
            p.copy_(q)
    opened = weights(run.model)
    for model, optimizer in ((twin, other), (run.model, run.optimizer)):
        (model(x) - x.prod(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.engine.after_step()
    for (name, p), q in zip(run.model.named_parameters(), twin.parameters(), strict=True):
        update = q.detach() - opened[name]
        torch.testing.assert_close(p.detach(), base[name] + update, rtol=1e-5, atol=1e-7)
    assert not same_bits(before, weights(run.model))


def test_a_replaced_optimizer_is_corrected_and_predicted_from_its_first_step():
    run, _ = replaced(told=True)
    ledger = run.engine.ledger
    assert ledger.corrected_steps == ledger.full_steps
    reasons = {event["reason"]: event["step"] for event in ledger.events}
    assert reasons["the optimizer was replaced"] == 21
    old = [g for g in run.engine._state.groups if g.treatment.predictor]
    assert all(g.memory.history.count == 40 for g in old)


def test_an_optimizer_is_not_replaced_inside_a_full_step():
    model = net()
    run = Run(model, adamw(model.parameters()))
    run.engine.before_step()
    with pytest.raises(UsageError, match="replace_optimizer"):
        run.engine.replace_optimizer(sgd(model.parameters()))


@pytest.mark.parametrize("lag", [0, 4])
def test_one_optimizer_is_replaced_by_several(lag):
    model = net()
    run = Run(model, adamw(model.parameters()), make_config(lag=lag, total_steps=90))
    for _ in range(12):
        run.step()
    both = [sgd(model[:3].parameters()), sgd(model[3:].parameters())]

    class Both:
        def step(self):
            for optimizer in both:
                optimizer.step()

        def zero_grad(self):
            for optimizer in both:
                optimizer.zero_grad()

    run.engine.replace_optimizer(both)
    run.optimizer = Both()
    for _ in range(12):
        run.step()
        assert run.inside == set(weights(model))
    assert not run.engine._state.plain
    assert run.until_predicted().record.phase is Phase.PREDICT


def test_a_parameter_without_gradients_is_neither_corrected_nor_predicted():
    model = net()
    model.register_parameter("spare", nn.Parameter(torch.ones(4, 4)))
    run = Run(model, adamw(model.parameters()), make_config(predictors=EVERY_KIND))
    for _ in range(12):
        run.step()
        assert "spare" not in run.inside | run.between


def test_matrices_whose_gradient_comes_and_goes_move_only_when_it_comes():
    torch.manual_seed(0)
    trunk, experts, head = nn.Linear(6, 8), [nn.Linear(8, 8), nn.Linear(8, 8)], nn.Linear(8, 1)
    model = nn.ModuleList([trunk, *experts, head])
    optimizer = adamw(model.parameters())
    moves = [0, 0]
    with HybridEngine(model, optimizer, HybridConfig(total_steps=80, speedup=1)) as engine:
        for k in range(40):
            before = [expert.weight.detach().clone() for expert in experts]
            engine.before_step()
            x = torch.randn(16, 6)
            head(experts[k % 2](trunk(x).tanh()).tanh()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step()
            moved = [not torch.equal(x.weight, y) for x, y in zip(experts, before, strict=True)]
            assert moved == [k % 2 == 0, k % 2 == 1]
            moves[k % 2] += moved[k % 2]
    assert moves == [20, 20]
    assert engine.ledger.corrected_steps == 40


def clamped(model, in_place):
    for p in model.parameters():
        p.data = p.data.clamp_(-0.3, 0.3) if in_place else p.data.clamp(-0.3, 0.3)


def test_weights_in_new_memory_after_each_step_cost_no_regrouping(monkeypatch):
    calls, runs, regroup = [], [], Groups.regroup

    def counting(self, *args):
        calls.append(self)
        regroup(self, *args)

    monkeypatch.setattr(Groups, "regroup", counting)
    for in_place in (True, False):
        model = net()
        run = Run(model, adamw(model.parameters()))
        while not run.engine.done:
            run.step()
            clamped(model, in_place)
        runs.append((weights(model), run.engine.ledger.predicted_steps))
    assert same_bits(*runs)
    assert runs[0][1] > 0
    assert len(calls) <= 4  # when the engine is made, and where the kinds are decided


def test_the_same_reason_for_leaving_parameters_out_is_told_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    config = HybridConfig(total_steps=90, kinds={"*": "vector"})
    run = Run(model, sgd(model.parameters()), config)
    for k in range(9):
        model[0].weight.requires_grad_(bool(k % 2))
        clamped(model, in_place=False)
        run.step()
    (event,) = run.engine.ledger.events
    assert event["reason"].startswith("there is nothing to predict")
    assert event["count"] == 1


@pytest.mark.parametrize("in_place", [True, False])
def test_memory_that_parameters_come_to_share_is_left_to_the_optimizer(in_place):
    model = net()
    run = Run(model, adamw(model.parameters()))
    for _ in range(6):
        run.step()
        clamped(model, in_place)
    groups = run.engine._state.groups
    assert any("2.weight" in group.names for group in groups)
    model[4].weight.data = model[2].weight.data
    run.step()
    groups = run.engine._state.groups
    assert not any({"2.weight", "4.weight"} & set(group.names) for group in groups)
    assert any("share memory" in event["reason"] for event in run.engine.ledger.events)
    model[4].weight.data = model[2].weight.data.clone()
    run.step()
    groups = run.engine._state.groups
    assert {"2.weight", "4.weight"} <= {n for group in groups for n in group.names}
