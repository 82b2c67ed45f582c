"""A non-finite loss or gradient at a forecast point leaves no trace; at base weights it may."""

import copy

import pytest
import torch
from torch import nn

from cases import MODELS, OPTIMIZERS
from hybrid_predict import HybridEngine, OptimizerWrapper, ParameterMapper, Verdict
from hybrid_predict.rollback import BufferKeeper
from loops import INF, NAN, SPOILERS, Bench, make_config, same_bits, spoil_with

ON_DEVICE = {"host": False, "device": True}


@pytest.fixture(params=ON_DEVICE)
def path(request, monkeypatch):
    """Both ways of undoing; the device's never reads the decision on the host."""
    if ON_DEVICE[request.param]:
        monkeypatch.setattr("hybrid_predict.rollback.bool", lambda tensor: tensor, raising=False)
    return request.param


def kept(bench):
    trace = bench.trace()
    return trace["model"], trace["optimizer"]


@pytest.mark.parametrize("clip", [False, True], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_spoiled_forecast_leaves_no_trace(optimizer, spoiler, clip, path):
    bench = Bench(make_config(), "conv", optimizer)
    bench.train(5)
    before = kept(bench)
    record = bench.step(SPOILERS[spoiler], clip)
    assert record.horizon > 0
    assert (record.verdict, record.finite, record.ticks) == (Verdict.REJECTED, False, 1)
    assert same_bits(before, kept(bench))
    assert bench.engine.ledger.rejected == 1


@pytest.mark.parametrize("model", MODELS)
def test_spoiled_batch_is_skipped_and_forecasts_go_on(model, path):
    bench = Bench(make_config(), model)
    bench.train(4)
    bench.step(spoil_with(factor=NAN))
    records = bench.train(4)
    assert all(r.finite and r.horizon > 0 for r in records)
    assert all(torch.isfinite(p).all() for p in bench.model.parameters())
    # The skipped batch has left no update behind: one state less than full steps.
    steps = {float(state["step"]) for state in bench.optimizer.state.values()}
    assert steps == {8.0}


def test_spoiled_first_forecast_restores_optimizer_state_created_in_it():
    # A layer that is used for the first time at a forecast point has no optimizer state before.
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    optimizers = [torch.optim.AdamW(layer.parameters(), lr=0.01) for layer in model]
    wrapper = OptimizerWrapper(optimizers[1])
    wrapper.snapshot()
    model[1](torch.ones(3)).sum().backward()
    optimizers[1].step()
    assert len(optimizers[1].state) == 2
    wrapper.restore()
    assert len(optimizers[1].state) == 0


@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("steps", [0, 1])
def test_at_base_weights_a_spoiled_step_goes_through(spoiler, steps):
    traces = []
    for config in (None, make_config()):
        bench = Bench(config, "conv")
        bench.train(steps)
        bench.step(SPOILERS[spoiler])
        traces.append(bench.trace())
    assert same_bits(*traces)


@pytest.mark.parametrize("lag", [0, 3])
def test_rejections_lengthen_the_run_by_what_was_credited(lag):
    config = make_config(lag=lag, total_steps=60)
    clean, spoiled = Bench(config), Bench(config)
    clean.finish()
    for k in range(40):
        if spoiled.engine.done:
            break
        spoiled.step(spoil_with(factor=NAN) if k in (5, 9, 10, 20) else None)
    spoiled.finish()
    assert [bench.engine.ledger.rejected for bench in (clean, spoiled)] == [0, 4]
    assert spoiled.engine.clock.full_steps > clean.engine.clock.full_steps == 40
    for bench in (clean, spoiled):
        clock, ledger = bench.engine.clock, bench.engine.ledger
        kept = clock.credit * (ledger.forecasts - ledger.rejected)
        # Only the fraction that is carried, and what the end of the run cuts off, are not granted.
        assert 0 <= kept - (clock.equivalent_steps - clock.full_steps) < 1 + clock.credit


def two_optimizers(steps):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    halves = [model[:2], model[2:]]
    optimizers = [torch.optim.AdamW(half.parameters(), lr=0.01) for half in halves]
    engine = HybridEngine(model, optimizers, make_config())

    def step(spoil=False, report=True, interrupt=False):
        engine.before_step()
        loss = model(torch.linspace(0, 1, 12).view(3, 4)).square().mean()
        loss.backward()
        if spoil:
            model[2].weight.grad.fill_(NAN)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
            if interrupt:
                return engine.detach()
        return engine.after_step(loss if report else None)

    for _ in range(steps):
        step()
    return model, step, optimizers


@pytest.mark.parametrize("report", [True, False], ids=["loss-reported", "no-loss"])
def test_gradient_spoiled_for_the_second_optimizer_undoes_the_first_too(report, path):
    model, step, _ = two_optimizers(5)
    before = [p.detach().clone() for p in model.parameters()]
    record = step(spoil=True, report=report)
    assert record.verdict is Verdict.REJECTED
    assert same_bits(before, list(model.parameters()))


def test_a_step_left_between_two_optimizers_updates_leaves_no_trace():
    model, step, optimizers = two_optimizers(5)
    before = copy.deepcopy([model.state_dict(), [o.state_dict() for o in optimizers]])
    step(interrupt=True)
    assert same_bits(before, [model.state_dict(), [o.state_dict() for o in optimizers]])


class LateBranch(nn.Module):
    """A branch that takes part from a later step on."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
        self.branch = nn.Linear(4, 1)
        self.open = False

    def forward(self, x):
        return self.trunk(x) + (self.branch(x) if self.open else 0.0)


def test_parameter_that_gets_its_first_gradient_late_is_protected_too(path):
    model = LateBranch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = HybridEngine(model, optimizer, make_config())
    for k in range(6):
        model.open = k == 5
        before = [p.detach().clone() for p in model.parameters()]
        engine.before_step()
        loss = model(torch.ones(2, 4)).square().mean() * (NAN if model.open else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record = engine.after_step(loss)
    assert record.verdict is Verdict.REJECTED
    assert same_bits(before, list(model.parameters()))


def test_loss_of_a_closure_is_checked():
    bench = Bench(make_config())
    bench.train(4)
    before = kept(bench)

    def closure():
        bench.optimizer.zero_grad()
        loss = bench.loss() + INF
        loss.backward()
        return loss

    bench.engine.before_step()
    bench.optimizer.step(closure)
    record = bench.engine.after_step()
    assert record.verdict is Verdict.REJECTED
    assert same_bits(before, kept(bench))


def flag(value):
    return torch.tensor(value)


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_restores_on_the_device_as_on_the_host(optimizer, good):
    bench = Bench(None, "mlp", optimizer)
    bench.train(3)
    wrapper = OptimizerWrapper(bench.optimizer)
    wrapper.snapshot()
    before = bench.trace()["optimizer"]
    bench.step()
    after = bench.trace()["optimizer"]
    wrapper.restore(good=flag(good))
    assert same_bits(bench.trace()["optimizer"], after if good else before)
    assert not same_bits(before, after)


def test_host_side_counts_are_corrected_once_however_often_a_step_is_undone():
    bench = Bench(None, "mlp", "adamw")
    bench.train(2)
    wrapper = OptimizerWrapper(bench.optimizer)
    wrapper.snapshot()
    bench.step()
    elsewhere = torch.zeros((), dtype=torch.bool, device="meta")
    for _ in range(2):
        wrapper.restore(good=elsewhere)
    for count, advance in wrapper.take_late_counts():
        count.sub_(advance)
    counts = {float(state["step"]) for state in bench.optimizer.state.values()}
    assert counts == {2.0}
    assert wrapper.take_late_counts() == []


@pytest.mark.parametrize("as_flag", [bool, flag], ids=["host", "device"])
@pytest.mark.parametrize("good", [True, False])
def test_mapper_restores_chosen_parameters_unless_good(as_flag, good):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    mapper = ParameterMapper(model, model.parameters())
    mapper.snapshot()
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(NAN)
    mapper.restore(as_flag(good), model[0].parameters())
    restored = [bool(torch.isfinite(p).all()) for p in model.parameters()]
    assert restored == [not good, not good, False, False]
    mapper.restore(False, model.parameters())
    assert same_bits(before, list(model.parameters()))


@pytest.mark.parametrize("as_flag", [bool, flag], ids=["host", "device"])
@pytest.mark.parametrize("good", [True, False])
def test_buffers_that_change_are_restored_unless_good(as_flag, good):
    norm = nn.BatchNorm1d(3)
    norm.register_buffer("constant", torch.ones(2))
    keeper = BufferKeeper(norm)
    norm(torch.randn(4, 3))
    keeper.learn()
    keeper.keep()
    before = {name: b.clone() for name, b in norm.named_buffers()}
    norm(torch.full((4, 3), NAN))
    keeper.restore(as_flag(good))
    assert same_bits(dict(norm.named_buffers()), before) is not good


@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_a_step_of_several_updates_of_one_optimizer_is_undone_as_a_whole(spoiled):
    bench = Bench(make_config())
    bench.train(6)
    before = kept(bench)
    bench.engine.before_step()
    assert bench.engine.mapper.displaced
    for k in range(3):
        (bench.loss() * (NAN if k == spoiled else 1.0)).backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
    assert bench.engine.after_step().verdict is Verdict.REJECTED
    assert same_bits(kept(bench), before)


def test_a_step_of_several_updates_is_verified_by_the_first_gradient():
    bench = Bench(make_config())
    bench.train(6)
    counted = []
    forecaster = bench.engine._forecaster
    update = forecaster.update
    forecaster.update = lambda rows, values: counted.append(list(rows)) or update(rows, values)
    bench.engine.before_step()
    for _ in range(3):
        bench.loss().backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
    bench.engine.after_step()
    assert counted == [list(range(len(forecaster.positions)))]
