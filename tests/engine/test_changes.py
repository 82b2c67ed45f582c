"""What changes in mid-run is followed from the next full step on, and no update is lost."""

import pytest
import torch
from cases import UNGATED
from loops import Run, make_config, net, normal, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.ledger import FELL_BACK

WIDTHS = 6, 16, 16, 16, 1


def loss(model, k):
    x = normal(k, 32, 6)
    return (model(x) - x.prod(1, keepdim=True)).square().mean()


def adamw(ps):
    return torch.optim.AdamW(ps, lr=0.01, weight_decay=0.0)


def sgd(ps):
    return torch.optim.SGD(ps, lr=0.01)


def run_of(config=None):
    model = net(*WIDTHS)
    return Run(model, adamw(model.parameters()), config or make_config(total_steps=90), loss)


def until_predicted(run):
    """The weights that the next predicted steps move."""
    while not run.step().predicted:
        pass
    return run.moved_between


def test_a_frozen_parameter_stands_still_and_moves_again_when_unfrozen():
    run = run_of().train(6)
    run.model[2].weight.requires_grad_(False)
    for _ in range(6):
        run.step()
        assert "2.weight" not in run.moved_inside | run.moved_between
        assert run.moved_inside >= {"0.weight", "4.weight", "6.weight"}
    assert until_predicted(run) >= {"0.weight", "4.weight"}
    run.model[2].weight.requires_grad_(True)
    run.step()
    assert "2.weight" in run.moved_inside
    until_predicted(run)
    assert "2.weight" in until_predicted(run)


def test_a_parameter_group_that_is_added_is_followed():
    model = net(*WIDTHS)
    model[2].requires_grad_(False)
    optimizer = adamw([p for p in model.parameters() if p.requires_grad])
    run = Run(model, optimizer, make_config(total_steps=90), loss).train(6)
    assert "2.weight" not in run.engine.mapper.names
    model[2].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.001})
    run.step()
    assert "2.weight" in run.moved_inside
    assert "2.weight" in run.engine.mapper.names
    until_predicted(run)
    assert until_predicted(run) >= {"0.weight", "2.weight", "4.weight"}


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_no_update_of_another_optimizer_is_lost(told):
    run = run_of(config=HybridConfig(total_steps=90, predictors=UNGATED)).train(20)
    run.optimizer = [sgd(run.model[:3].parameters()), sgd(run.model[3:].parameters())]
    if told:
        state = run.engine.state_dict()
        run.engine.detach()
        run.engine = HybridEngine(run.model, run.optimizer, run.engine.config)
        run.engine.load_state_dict(state)
    for _ in range(20):
        run.step()
        assert run.moved_inside == set(weights(run.model))
    ledger = run.engine.ledger
    assert ledger.full_steps == 40
    assert (ledger.undone_steps == 0) is told
    assert ledger.corrected_steps == (40 if told else 20)


def clamped(model, in_place):
    for p in model.parameters():
        p.data = p.data.clamp_(-0.3, 0.3) if in_place else p.data.clamp(-0.3, 0.3)


def test_weights_in_new_memory_after_each_step_train_as_those_in_place():
    runs = []
    for in_place in (True, False):
        run = run_of(config=make_config(total_steps=40))
        while not run.engine.done:
            run.step()
            clamped(run.model, in_place)
        runs.append((weights(run.model), run.engine.ledger.predicted_steps))
    assert same_bits(*runs)
    assert runs[0][1] > 0


def left(run):
    (group,) = run.optimizer.param_groups
    group["params"] = [p for p in group["params"] if p is not run.model[2].weight]


def replaced(run):
    (group,) = run.optimizer.param_groups
    run.model[2].weight = nn.Parameter(run.model[2].weight.detach().clone())
    group["params"] = [*run.model.parameters()]


@pytest.mark.parametrize("change", [left, replaced])
def test_what_changes_inside_a_step_is_followed(change):
    """A parameter that the update cannot reach is where it was before the predicted steps."""
    run = run_of().train(6)
    old = run.model[2].weight
    before, plain = old.detach().clone(), run.loss

    def changing(model, k):
        change(run)
        return plain(model, k)

    run.loss = changing
    assert run.step().predicted
    run.loss = plain
    assert torch.equal(old, before)
    run.train(20)
    assert run.engine.ledger.undone_steps == 0
    assert run.engine.ledger.predicted_steps > 5
    assert not run.engine.ledger.last_event(FELL_BACK)[1]
