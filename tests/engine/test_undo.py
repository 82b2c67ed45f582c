"""A verifying step that cannot stand leaves no trace of itself and of its predicted steps."""

import copy

import pytest
import torch
from loops import INF, NAN, SPOILERS, Bench, Run, full_step, make_config, net, same_bits
from verifying import EVERY_OPTIMIZER
from verifying import run as verifying

from hybrid_predict import HybridEngine, Verdict
from hybrid_predict.errors import UsageError


@pytest.mark.parametrize(
    ("optimizer", "clip"), [*((name, False) for name in EVERY_OPTIMIZER), ("adamw", True)]
)
def test_a_bad_gradient_undoes_weights_state_and_buffers(optimizer, clip):
    bench = verifying(optimizer)
    before, steps = bench.kept(), bench.engine.ledger.steps
    record = bench.step(SPOILERS["one-gradient"], clip)
    assert (record.predicted, record.ticks, record.verdict) == (1, 1, Verdict.UNDONE)
    assert same_bits(bench.kept(), before)
    assert bench.engine.ledger.steps == steps + 1
    ledger = bench.engine.ledger
    assert (ledger.undone_steps, ledger.predicted_steps) == (1, 3)
    event = ledger.events[-1]
    assert event["reason"].startswith("predicted steps were undone: the gradient")
    assert (event["step"], event["count"]) == (7, 1)


def two_optimizers(make):
    """A run before a verifying step, and both parts of its model and their optimizers."""
    model = net(4, 6, 6, 1)
    optimizers = [make(list(part.parameters())) for part in (model[:2], model[2:])]
    x = torch.linspace(0, 1, 12).view(3, 4)
    run = Run(model, optimizers, make_config(), lambda model, _: model(x).square().mean())
    return run.train(6), [model[:2], model[2:], *optimizers]


@pytest.mark.parametrize(("optimizer", "bad"), [("adamw", 0), ("adamw, fused", 1)])
def test_each_optimizer_is_judged_on_its_own_parameters(optimizer, bad):
    run, parts = two_optimizers(EVERY_OPTIMIZER[optimizer])
    before = [copy.deepcopy(part.state_dict()) for part in parts]

    def spoil():
        parts[bad][0].weight.grad.fill_(NAN)

    record = full_step(run.engine, run.optimizer, lambda: run.loss(run.model, 6), spoil)
    after = [part.state_dict() for part in parts]
    same = [same_bits(dict(x), dict(y)) for x, y in zip(before, after, strict=True)]
    assert same == [bad == 0, bad == 1] * 2
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_a_step_left_between_two_updates_undoes_what_is_not_verified():
    run, parts = two_optimizers(EVERY_OPTIMIZER["adamw"])
    before = copy.deepcopy([part.state_dict() for part in parts])
    run.engine.before_step()
    run.loss(run.model, 6).backward()
    run.optimizer[0].step()
    run.engine.detach()
    same = [same_bits(dict(x), dict(y.state_dict())) for x, y in zip(before, parts, strict=True)]
    assert same == [False, True] * 2


class Flaky(torch.optim.AdamW):
    """Raises once when it is told to."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise ZeroDivisionError
        return super().step(closure)


@pytest.mark.parametrize(("factor", "again"), [(1.0, False), (NAN, True)])
def test_an_update_that_raises_leaves_weights_and_gradients_as_they_were(factor, again):
    bench = Bench(None)
    bench.optimizer = Flaky(bench.model.parameters(), lr=0.01)
    bench.engine = HybridEngine(bench.model, bench.optimizer, make_config())
    bench.train(6)
    before = bench.kept()
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
        assert same_bits(bench.kept(), before)
        pairs = zip(bench.model.parameters(), gradients, strict=True)
        assert all(p.grad is g for p, g in pairs)
        bench.optimizer.zero_grad()
        record = bench.step()
    assert (record.verdict, record.ticks) == (Verdict.STANDS, 2)
    assert not any("undone" in reason for reason in bench.reasons)


def test_a_step_is_not_left_after_its_update():
    bench = verifying(model="mlp")
    bench.engine.before_step()
    bench.loss().backward()
    bench.optimizer.step()
    for leave in (bench.engine.abandon, bench.engine.before_step):
        with pytest.raises(UsageError, match="after_step"):
            leave()
    assert bench.engine.after_step().verdict is Verdict.STANDS


def test_a_second_update_that_is_broken_off_leaves_what_the_first_has_verified(monkeypatch):
    model = net(4, 6, 6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    x = torch.linspace(0, 1, 12).view(3, 4)
    run = Run(model, [optimizer], make_config(), lambda model, _: model(x).square().mean())
    engine = run.train(6).engine
    engine.before_step()
    loss = run.loss(model, 6)
    loss.backward()
    engine.observe_loss(loss)
    optimizer.step()
    verified = copy.deepcopy(model.state_dict())

    def broken(*args):
        raise KeyboardInterrupt

    optimizer.found_inf = torch.ones(())  # a gradient scaler skips the second one
    optimizer.grad_scale = torch.ones(())
    monkeypatch.setattr(engine._state, "decide_kinds", broken)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    monkeypatch.undo()
    record = engine.after_step(loss)
    assert (record.predicted, record.verdict) == (1, Verdict.STANDS)
    assert same_bits(model.state_dict(), verified)
