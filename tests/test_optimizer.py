"""What the optimizer wrapper refuses, shows, reconciles and undoes."""

import copy

import pytest
import torch
from torch import nn

from cases import OPTIMIZERS
from hybrid_predict import ConfigError, HybridEngine, OptimizerWrapper, UnsupportedSetupError
from hybrid_predict.gradients import GradientProbe
from loops import Bench, make_config, same_bits


def named_optimizer(name):
    return type(name, (torch.optim.SGD,), {})


REFUSED = {
    "LBFGS": torch.optim.LBFGS,
    **{
        name: named_optimizer(name)
        for name in ("AdamWScheduleFree", "SGDScheduleFree", "Lookahead", "SAM", "ASAM")
    },
    "subclass": type("Mine", (named_optimizer("SAM"),), {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_forecasts_would_contradict_are_refused(name):
    optimizer = REFUSED[name](nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(UnsupportedSetupError, match=r"optimizer: expected .*because it .*use SGD"):
        OptimizerWrapper(optimizer)


@pytest.mark.parametrize("value", [[], None, "sgd", [1]], ids=repr)
def test_anything_but_torch_optimizers_is_refused(value):
    with pytest.raises(ConfigError, match=r"optimizer: expected a torch\.optim.Optimizer"):
        OptimizerWrapper(value)


def test_learning_rates_are_listed_per_group_in_order():
    a, b, c = (nn.Linear(1, 1) for _ in range(3))
    first = torch.optim.SGD(
        [{"params": a.parameters(), "lr": 0.1}, {"params": b.parameters()}], 0.2
    )
    second = torch.optim.AdamW(c.parameters(), lr=torch.tensor(0.3))
    wrapper = OptimizerWrapper([first, second])
    assert wrapper.learning_rates() == pytest.approx([0.1, 0.2, 0.3])
    assert [id(p) for p in wrapper.parameters(1)] == [id(p) for p in c.parameters()]
    assert len(list(wrapper.parameters())) == 6


class Listener:
    def __init__(self):
        self.heard = []

    def before_update(self, index, loss):
        self.heard.append(("before", index, None if loss is None else loss.item()))

    def after_update(self, index):
        self.heard.append(("after", index))


@pytest.mark.parametrize("by_name", [True, False], ids=["keyword", "positional"])
def test_closure_runs_once_and_its_loss_is_heard(by_name):
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.5)
    listener, calls = Listener(), []
    handles = OptimizerWrapper(optimizer).attach(lambda: listener)

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        calls.append(1)
        return loss

    result = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert result.item() == 2.0
    assert calls == [1]
    assert listener.heard == [("before", 0, 2.0), ("after", 0)]
    assert p.tolist() == [0.0, 0.0]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(listener.heard) == 2


def test_loop_with_closures_equals_the_loop_without():
    traces = []
    for closed in (False, True):
        bench = Bench(make_config())
        for _ in range(10):
            bench.engine.before_step()
            losses = []

            def closure(bench=bench, losses=losses):
                bench.optimizer.zero_grad()
                loss = bench.loss()
                loss.backward()
                losses.append(loss)
                return loss

            if closed:
                bench.optimizer.step(closure)
            else:
                closure()
                bench.optimizer.step()
            bench.taken += 1
            record = bench.engine.after_step(None if closed else losses[0])
            assert record.loss == losses[0].item()
        traces.append(bench.trace())
    assert same_bits(*traces)


@pytest.mark.parametrize("before", [0, 3], ids=["state-created", "state-changed"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_restored_state_is_bit_for_bit_the_snapshot(optimizer, before):
    bench = Bench(None, optimizer=optimizer)
    bench.train(before)
    wrapper = OptimizerWrapper(bench.optimizer)
    wrapper.snapshot()
    wanted = copy.deepcopy(bench.optimizer.state_dict())
    bench.train(2)
    wrapper.restore(good=True)
    assert not same_bits(bench.optimizer.state_dict(), wanted)
    wrapper.restore()
    assert same_bits(bench.optimizer.state_dict(), wanted)


HORIZON = 4.0
LR = 0.1


def reconciled(make, policy):
    """State of a one-parameter optimizer before and after, and the forecast."""
    p = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = make([p])
    for _ in range(3):
        p.grad = torch.tensor([0.5, -0.25])
        optimizer.step()
    before = copy.deepcopy(optimizer.state[p])
    forecast = torch.tensor([-0.3, 0.2])
    OptimizerWrapper(optimizer).reconcile({id(p): forecast}, HORIZON, policy)
    return before, optimizer.state[p], forecast


def sgd(ps):
    return torch.optim.SGD(ps, lr=LR, momentum=0.9)


def adamw(ps):
    return torch.optim.AdamW(ps, lr=LR, betas=(0.8, 0.9), eps=1e-3)


@pytest.mark.parametrize("make", [sgd, adamw])
def test_keep_leaves_the_state_alone(make):
    before, after, _ = reconciled(make, "keep")
    assert same_bits(before, after)


def test_advance_adds_the_horizon_to_the_counts_only():
    before, after, _ = reconciled(adamw, "advance")
    assert float(after["step"]) == float(before["step"]) + HORIZON
    assert same_bits(before["exp_avg"], after["exp_avg"])


def test_advance_has_no_count_to_change_in_sgd():
    before, after, _ = reconciled(sgd, "advance")
    assert same_bits(before, after)


def test_implied_momentum_repeats_the_forecast_s_velocity():
    _, after, forecast = reconciled(sgd, "implied")
    torch.testing.assert_close(after["momentum_buffer"], -forecast / (HORIZON * LR))


def test_implied_first_moment_repeats_the_forecast_as_adam_s_update():
    before, after, forecast = reconciled(adamw, "implied")
    step = float(before["step"]) + HORIZON
    scale = (before["exp_avg_sq"] / (1 - 0.9**step)).sqrt() + 1e-3
    wanted = -forecast / (HORIZON * LR) * scale * (1 - 0.8**step)
    torch.testing.assert_close(after["exp_avg"], wanted)
    assert same_bits(before["exp_avg_sq"], after["exp_avg_sq"])
    # The update that Adam would make from it is the forecast's share per update.
    update = -LR * after["exp_avg"] / (1 - 0.8**step) / scale
    torch.testing.assert_close(update, forecast / HORIZON)


def test_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="policy: expected one of keep, advance, implied"):
        reconciled(sgd, "reset")


@pytest.mark.parametrize(("long_horizon", "reconciles"), [(1.0, True), (99.0, False)])
def test_policy_is_for_long_forecasts_only(long_horizon, reconciles):
    bench = Bench(make_config(policy="advance", long_horizon=long_horizon, speedup=1))
    bench.train(8)
    steps = {float(s["step"]) for s in bench.optimizer.state.values()}
    assert steps == {8.0 + 2.0 * bench.engine.ledger.forecasts if reconciles else 8.0}


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_a_scaler_are_measured_as_if_unscaled(fused, monkeypatch):
    heard = []
    measure = GradientProbe.total_norm
    monkeypatch.setattr(
        GradientProbe,
        "total_norm",
        lambda self: heard.append(float(measure(self))) or measure(self),
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for scaled in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        optimizer = torch.optim.Adam(net.parameters(), fused=fused)
        engine = HybridEngine(net, optimizer, make_config())
        for k in range(8):
            engine.before_step()
            loss = net(torch.full((8, 4), 1.0 + k)).square().mean()
            (scaler.scale(loss) if scaled else loss).backward()
            scaler.step(optimizer) if scaled else optimizer.step()
            scaler.update() if scaled else None
            optimizer.zero_grad()
            engine.after_step(loss)
    assert heard[8:] == pytest.approx(heard[:8])
    assert len(heard) == 16
