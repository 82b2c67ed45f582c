"""What changes in mid-run is followed from the next full step on, and no update is lost."""

import math

import pytest
import torch
from cases import UNGATED
from loops import Bench, Run, make_config, net, normal, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, Verdict
from hybrid_predict.errors import UnsupportedSetupError, UsageError

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


def test_regrouping_keeps_what_lengths_are_measured_by():
    """A bias that thaws gets a group of its own; a matrix that thaws joins that of the others.

    That group then rests for a full step, in place of the predicted step that is due.
    """
    lengths = {}
    for thawed in ("nothing", "0.bias", "4.weight"):
        run = run_of(config=make_config(total_steps=90, predictors=UNGATED))
        parameter = dict(run.model.named_parameters()).get(thawed)
        if parameter is not None:
            parameter.requires_grad_(False)
        run.train(20)
        if parameter is not None:
            parameter.requires_grad_(True)
        run.train(3)
        lengths[thawed] = [record.length for record in run.records[19:]]
    first, own = lengths["nothing"][0], lengths["0.bias"]
    assert lengths["nothing"] == pytest.approx([first] * 4, rel=0.3)
    assert own == pytest.approx(lengths["nothing"], rel=0.3)
    before, *pause, after = lengths["4.weight"]
    assert pause == [None, None]
    assert after == pytest.approx(before, rel=0.3)


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
        run.engine.replace_optimizer(run.optimizer)
    for _ in range(20):
        run.step()
        assert run.moved_inside == set(weights(run.model))
    ledger = run.engine.ledger
    assert ledger.full_steps == 40
    assert (ledger.undone_steps == 0) is told
    assert ledger.corrected_steps == (40 if told else 20)
    assert ("the optimizer was replaced" in run.reasons) is told


class Returning(torch.optim.SGD):
    """Moves the weights back to a second copy in every update."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p].setdefault("slow_weights", p.clone()))
        return super().step(closure)


def test_a_refused_replacement_changes_nothing_and_an_accepted_one_owns_its_parameters():
    model = net(*WIDTHS)
    run = Run(model, adamw(model[:3].parameters()), make_config(total_steps=90), loss).train(1)
    before = run.engine.optimizer
    with pytest.raises(UnsupportedSetupError, match="second copy"):
        run.engine.replace_optimizer(Returning(model.parameters(), lr=0.1))
    assert run.engine.optimizer is before
    run.engine.before_step()
    with pytest.raises(UsageError, match="replace_optimizer"):
        run.engine.replace_optimizer(sgd(run.model.parameters()))
    run.engine.abandon()
    run.train(6)
    assert run.engine.ledger.corrected_steps == 7
    assert run.engine.ledger.predicted_steps > 0
    run.engine.replace_optimizer(adamw(model.parameters()))
    with pytest.raises(UnsupportedSetupError, match="no other engine"):
        HybridEngine(model, run.engine.optimizer, make_config())


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


def frozen(run):
    run.model[2].weight.requires_grad_(False)


def replaced(run):
    (group,) = run.optimizer.param_groups
    run.model[2].weight = nn.Parameter(run.model[2].weight.detach().clone())
    group["params"] = [*run.model.parameters()]


INSIDE = {
    "left": left,
    "frozen": frozen,
    "replaced": replaced,
    "added": lambda run: run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]}),
}


@pytest.mark.parametrize(
    ("change", "place", "steps"),
    [
        ("left", "forward", 6),
        ("frozen", "update", 6),
        ("replaced", "forward", 6),
        ("replaced", "update", 0),
        ("added", "update", 6),
    ],
)
def test_what_changes_inside_a_step_is_followed(steps, change, place):
    """A parameter that the update cannot reach is where it was before the predicted steps."""
    run = run_of().train(steps)
    old = run.model[2].weight
    before, act = old.detach().clone(), run.loss

    def inside(model, k):
        if place == "forward":
            INSIDE[change](run)
        loss = act(model, k)
        if place == "update":
            loss.register_hook(lambda _: INSIDE[change](run))
        return loss

    run.loss = inside
    record = run.step()
    run.loss = act
    assert record.predicted == bool(steps)
    assert torch.equal(old, before) is (change != "added")
    run.train(20)
    assert run.engine.ledger.undone_steps == 0
    assert run.engine.ledger.predicted_steps > 5
    assert not run.engine.ledger.fell_back


def predicted(bench):
    """Open a verifying step, and return the weights before its predicted steps."""
    while True:
        before = weights(bench.model)
        bench.engine.before_step()
        if bench.engine._step.predicted:
            return before
        bench.engine.abandon()
        bench.step()


def test_an_undo_reaches_weights_that_were_given_other_memory_inside_the_step():
    bench = Bench(make_config())
    before = predicted(bench)
    for p in bench.model.parameters():
        p.data = p.data.clone()
    assert not same_bits(weights(bench.model), before)
    bench.engine.abandon()
    assert same_bits(weights(bench.model), before)


def test_a_learning_rate_in_a_tensor_stays_the_same_tensor_after_an_undone_verdict():
    rate = torch.tensor(1e-3)
    model = net(6, 8, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=False)

    def loss(model, k):
        found = model(torch.ones(4, 6)).square().mean()
        return found * math.nan if k % 4 == 3 else found

    run = Run(model, optimizer, make_config(), loss)
    records = run.train(24).records
    assert any(record.verdict is Verdict.UNDONE for record in records)
    assert optimizer.param_groups[0]["lr"] is rate


class Ascending(torch.optim.Optimizer):
    """Goes along the gradient without saying so."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=group["lr"])


def test_an_optimizer_that_goes_uphill_is_left_to_itself():
    def trained(updates):
        model = net(6, 8, 8, 3)
        config = HybridConfig(total_steps=20, speedup=1, updates=updates, max_overhead=1e9)
        batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
        optimizer = Ascending(model.parameters())
        run = Run(model, optimizer, config, lambda model, k: model(batch).sin().mean())
        return weights(run.finish().model)

    assert same_bits(trained({"hidden": "spectral"}), trained({}))


def test_windows_of_one_kind_that_close_apart_do_not_measure_persistence():
    config = make_config(total_steps=200, speedup="auto", kinds={"0.bias": "hidden"})
    bench = Bench(config)
    bench.model[0].bias.requires_grad_(False)
    bench.train(33)
    bench.model[0].bias.requires_grad_(True)
    before = bench.engine._policy.confidences["hidden", 0]
    measured, windows = before.measured, before.skill.windows
    bench.train(60)
    after = bench.engine._policy.confidences["hidden", 0]
    assert after.measured == measured and after.skill.windows > windows
