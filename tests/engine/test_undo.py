"""A verifying step that cannot stand leaves no trace of itself and of its predicted steps."""

import copy

import pytest
import torch
from cases import MODELS
from loops import INF, NAN, SPOILERS, Bench, Run, make_config, same_bits, spoil_with, weights
from torch import nn
from verifying import EVERY_OPTIMIZER, FUSED, kept
from verifying import run as verifying

from hybrid_predict import HybridEngine, UsageError, Verdict

BAD_GRADIENT = [name for name in SPOILERS if "only" not in name]


@pytest.mark.parametrize("clip", [False, True], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("spoiler", BAD_GRADIENT)
@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER)
def test_a_bad_gradient_undoes_weights_state_and_buffers(optimizer, spoiler, clip):
    bench = verifying(optimizer)
    before, steps = kept(bench), bench.engine.ledger.steps
    record = bench.step(SPOILERS[spoiler], clip)
    assert (record.predicted, record.ticks, record.verdict) == (1, 1, Verdict.UNDONE)
    assert same_bits(kept(bench), before)
    assert bench.engine.ledger.steps == steps + 1
    ledger = bench.engine.ledger
    assert (ledger.undone_steps, ledger.predicted_steps) == (1, 3)
    event = ledger.events[-1]
    assert event["reason"].startswith("predicted steps were undone: the gradient")
    assert (event["step"], event["count"]) == (7, 1)


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER)
def test_the_same_gradient_goes_through_where_nothing_was_predicted(optimizer):
    traces = []
    for changes in ({"enabled": False}, {"updates": {}, "warmup_steps": 20}):
        bench = verifying(optimizer, steps=3, **changes)
        bench.step(SPOILERS["one-gradient"])
        traces.append(kept(bench))
    assert same_bits(*traces)


@pytest.mark.parametrize("model", MODELS)
def test_a_run_goes_on_after_an_undone_step(model):
    bench = verifying(model=model, total_steps=80)
    bench.step(spoil_with(factor=NAN))
    records = bench.finish()
    assert all(torch.isfinite(p).all() for p in bench.model.parameters())
    counts = {float(s["step"]) for s in bench.optimizer.state.values()}
    assert counts == {float(6 + len(records))}  # one update less than full steps
    assert sum(r.ticks for r in records) + 10 == 80
    # Predicted steps pause for 16 full steps and then come back.
    predicted = [r.predicted for r in records]
    assert not any(predicted[:16])
    assert any(predicted[16:])


@pytest.mark.parametrize("lag", [0, 1, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw, fused"])
def test_undone_steps_are_counted_when_their_verdicts_are_read(optimizer, lag):
    bench = verifying(optimizer, lag=lag, total_steps=60, steps=0)
    records = []
    while not bench.engine.done:
        spoil = spoil_with(factor=NAN) if bench.taken in (9, 30) else None
        records.append(bench.step(spoil))
    ledger = bench.engine.ledger
    assert ledger.undone_steps == sum(records[k].predicted for k in (9, 30))
    assert ledger.undone_steps >= 1
    assert sum(r.ticks for r in records) == 60 == ledger.steps
    assert ledger.full_steps + ledger.predicted_steps == 60
    made = sum(r.predicted for r in records)
    assert made == ledger.predicted_steps + ledger.undone_steps


def two_optimizers(make):
    torch.manual_seed(0)
    layers = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)
    model = nn.Sequential(*layers)
    optimizers = [make(list(part.parameters())) for part in (model[:2], model[2:])]
    engine = HybridEngine(model, optimizers, make_config())

    def step(spoil=None, interrupt=False):
        engine.before_step()
        loss = model(torch.linspace(0, 1, 12).view(3, 4)).square().mean()
        loss.backward()
        if spoil is not None:
            model[spoil].weight.grad.fill_(NAN)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
            if interrupt:
                return engine.detach()
        return engine.after_step(loss)

    for _ in range(6):
        step()
    return model, optimizers, step


@pytest.mark.parametrize("make", [EVERY_OPTIMIZER["adamw"], FUSED["adamw, fused"]],
                         ids=["plain", "fused"])  # fmt: skip
@pytest.mark.parametrize("bad", [0, 1])
def test_each_optimizer_is_judged_on_its_own_parameters(make, bad):
    model, optimizers, step = two_optimizers(make)
    before = [copy.deepcopy(x.state_dict()) for x in (model[:2], model[2:], *optimizers)]
    record = step(spoil=(0, 2)[bad])
    after = [x.state_dict() for x in (model[:2], model[2:], *optimizers)]
    same = [same_bits(dict(x), dict(y)) for x, y in zip(before, after, strict=True)]
    assert same == [bad == 0, bad == 1] * 2
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_step_left_between_two_updates_undoes_what_is_not_verified():
    model, optimizers, step = two_optimizers(EVERY_OPTIMIZER["adamw"])
    before = copy.deepcopy([model[2:].state_dict(), optimizers[1].state_dict()])
    first = weights(model[:2])
    step(interrupt=True)
    assert same_bits(before, [model[2:].state_dict(), optimizers[1].state_dict()])
    assert not same_bits(weights(model[:2]), first)


class LateBranch(nn.Module):
    """A branch that takes part from a later step on."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1)
        self.trunk, self.branch, self.open = nn.Sequential(*layers), nn.Linear(4, 1), False

    def forward(self, x):
        return self.trunk(x) + (self.branch(x) if self.open else 0.0)


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER)
def test_a_first_gradient_in_an_undone_step_leaves_no_state_behind(optimizer):
    torch.manual_seed(0)
    model = LateBranch()
    optimizer = EVERY_OPTIMIZER[optimizer](list(model.parameters()))

    def loss(model, k):
        return model(torch.ones(2, 4)).square().mean() * (NAN if model.open else 1.0)

    run = Run(model, optimizer, make_config(), loss).train(6)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    model.open = True
    assert run.step().verdict is Verdict.UNDONE
    assert same_bits(before, [model.state_dict(), optimizer.state_dict()])


class Counting(torch.optim.SGD):
    """Counts its steps in the group, and warms up by that count."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["momentum"] = min(0.9, 0.1 * group["k"])
        return super().step(closure)


def test_counters_in_parameter_groups_go_back_too():
    bench = Bench(None)
    bench.optimizer = Counting(bench.model.parameters(), lr=0.02, momentum=0.1)
    bench.engine = HybridEngine(bench.model, bench.optimizer, make_config())
    bench.train(6)
    before = kept(bench)
    assert bench.step(spoil_with(factor=NAN)).verdict is Verdict.UNDONE
    assert same_bits(kept(bench), before)
    assert bench.optimizer.param_groups[0]["k"] == 6


def test_gradients_that_were_held_back_are_given_back():
    bench = verifying(model="mlp")
    bench.engine.before_step()
    (bench.loss() * NAN).backward()
    before = [p.grad for p in bench.model.parameters()]
    bench.optimizer.step()
    assert all(p.grad is g for p, g in zip(bench.model.parameters(), before, strict=True))
    bench.engine.after_step()


def test_a_step_without_an_update_is_undone():
    bench = verifying()
    before = kept(bench)
    bench.engine.before_step()
    loss = bench.loss()
    assert not same_bits(kept(bench), before)
    record = bench.engine.after_step(loss)
    assert (record.predicted, record.ticks, record.verdict) == (1, 1, Verdict.UNDONE)
    assert same_bits(kept(bench), before)
    assert "no update followed" in bench.engine.ledger.events[0]["reason"]


class Flaky(torch.optim.AdamW):
    """Raises once when it is told to."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise ZeroDivisionError
        return super().step(closure)


@pytest.mark.parametrize("again", [False, True], ids=["left", "made again"])
@pytest.mark.parametrize("factor", [1.0, NAN])
def test_an_update_that_raises_leaves_weights_and_gradients_as_they_were(factor, again):
    bench = Bench(None)
    bench.optimizer = Flaky(bench.model.parameters(), lr=0.01)
    bench.engine = HybridEngine(bench.model, bench.optimizer, make_config())
    bench.train(6)
    before = kept(bench)
    bench.engine.before_step()
    (bench.loss() * factor).backward()
    gradients = [p.grad for p in bench.model.parameters()]
    bench.optimizer.fails = True
    with pytest.raises(ZeroDivisionError):
        bench.optimizer.step()
    if again:  # whatever its gradients were, those of the second call decide
        bench.optimizer.zero_grad()
        bench.loss().backward()
        bench.optimizer.step()
        record = bench.engine.after_step()
        assert record.gradients.total_norm < INF
    else:
        bench.engine.abandon()
        assert same_bits(kept(bench), before)
        pairs = zip(bench.model.parameters(), gradients, strict=True)
        assert all(p.grad is g for p, g in pairs)
        bench.optimizer.zero_grad()
        record = bench.step()
    assert (record.verdict, record.ticks) == (Verdict.STANDS, 2)
    assert not any("undone" in event["reason"] for event in bench.engine.ledger.events)


@pytest.mark.parametrize(
    ("factor", "undone"),
    [(None, True), (1.0, False), (NAN, True)],
    ids=["before the update", "after it", "after one that was held back"],
)
def test_an_engine_that_goes_undoes_and_counts_predicted_steps_that_do_not_stand(factor, undone):
    bench = verifying(model="mlp")
    before = weights(bench.model)
    bench.engine.before_step()
    if factor is not None:
        (bench.loss() * factor).backward()
        bench.optimizer.step()
    bench.engine.detach()
    assert bench.engine.ledger.undone_steps == undone
    assert same_bits(weights(bench.model), before) is undone


def test_a_step_is_not_left_after_its_update():
    bench = verifying(model="mlp")
    bench.engine.before_step()
    bench.loss().backward()
    bench.optimizer.step()
    for leave in (bench.engine.abandon, bench.engine.before_step):
        with pytest.raises(UsageError, match="after_step"):
            leave()
    assert bench.engine.after_step().verdict is Verdict.STANDS


def test_what_others_write_to_moved_weights_stays_when_a_step_is_left():
    bench = verifying(model="mlp")
    base = weights(bench.model)
    bench.engine.before_step()
    with torch.no_grad():
        bench.model[0].weight.add_(1.0)
    bench.engine.abandon()
    now = weights(bench.model)
    torch.testing.assert_close(now.pop("0.weight"), base.pop("0.weight") + 1.0)
    assert same_bits(now, base)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_train_and_undo_alike(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)

    def loss(model, k):
        return model(torch.ones(3, 4, dtype=dtype)).square().mean() * (NAN if k == 8 else 1.0)

    run = Run(model, optimizer, make_config(total_steps=60), loss).train(8)
    base = [weights(model), run.engine.state_dict()["tensors"]["groups"]]
    assert run.step().verdict is Verdict.UNDONE
    assert same_bits([weights(model), run.engine.state_dict()["tensors"]["groups"]], base)
    assert run.train(3).engine.ledger.undone_steps == 1
    assert all(p.dtype == dtype and torch.isfinite(p).all() for p in model.parameters())
