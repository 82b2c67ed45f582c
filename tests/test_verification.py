"""The loss check, the shield around it, and verdicts."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from hybrid_predict import FixedHorizon, ParameterMapper, Verdict, WeightDelta
from hybrid_predict.gradients import GradientInfo, GradientProbe, LateReader
from hybrid_predict.verification import judge, loss_rises, random_states, shielded
from loops import INF, NAN, Bench, make_config, same_bits, weights


class Dice(nn.Module):
    """Draws from every generator and counts its passes in a buffer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.linear = nn.Linear(3, 1)

    def forward(self):
        noise = torch.rand(4, 3) + random.random() + np.random.rand()
        return self.linear(self.norm(noise)).mean()


def test_shielded_passes_leave_randomness_buffers_and_gradients_alone():
    model = Dice()
    before, buffers = random_states(), {k: b.clone() for k, b in model.named_buffers()}
    with shielded(model):
        loss = model()
    assert not loss.requires_grad
    assert same_bits(random_states(), before)
    assert same_bits(dict(model.named_buffers()), buffers)


def test_shield_holds_when_the_pass_raises():
    model = Dice()
    before = random_states()
    with pytest.raises(ZeroDivisionError), shielded(model):
        model()
        raise ZeroDivisionError
    assert same_bits(random_states(), before)


@pytest.mark.parametrize(
    ("slope", "tolerance", "rises"),
    [(1.0, 0.0, True), (-1.0, 0.0, False), (0.1, 0.2, False), (0.3, 0.2, True), (NAN, 9.0, True)],
)
def test_loss_may_rise_by_the_tolerance_only(slope, tolerance, rises):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    mapper = ParameterMapper(model, model.parameters())
    mapper.snapshot()
    delta = WeightDelta(("weight",), (torch.ones(1, 1),), (1.0,))
    found = loss_rises(lambda: 1 + slope * model.weight.sum(), model, mapper, delta, tolerance)
    assert found is rises
    assert model.weight.item() == 0
    assert not mapper.displaced


def checked(bench, forecast_loss):
    """One full step whose loss check sees a given loss wherever the weights are displaced."""
    base = weights(bench.model)

    def evaluate():
        moved = not same_bits(weights(bench.model), base)
        bench.loss()
        return torch.tensor(forecast_loss if moved else 1.0)

    bench.engine.before_step(evaluate)
    at_base = same_bits(weights(bench.model), base)
    loss = bench.loss()
    loss.backward()
    bench.optimizer.step()
    bench.optimizer.zero_grad()
    bench.taken += 1
    return bench.engine.after_step(loss), at_base


def loss_checked(**changes):
    changes = {"loss_tolerance": 0.1, "loss_check_every": 1, **changes}
    bench = Bench(make_config(**changes), "conv")
    bench.train(4)
    return bench


@pytest.mark.parametrize(
    ("forecast_loss", "rejected"), [(1.05, False), (1.2, True), (NAN, True), (INF, True)]
)
def test_forecast_that_raises_the_loss_is_rejected_before_it_is_applied(forecast_loss, rejected):
    bench = loss_checked()
    record, at_base = checked(bench, forecast_loss)
    assert at_base is rejected
    assert (record.verdict is Verdict.REJECTED) is rejected
    assert (record.horizon == 0) is rejected
    assert bench.engine.ledger.forward_passes == 2
    reasons = [event["reason"] for event in bench.engine.ledger.events]
    assert ("forecast rejected: the loss check failed" in reasons) is rejected
    assert any("given no forward pass" in reason for reason in reasons)
    assert bench.engine.ledger.cost == pytest.approx(5 + 2 / 3)


def test_refused_forecast_leaves_the_step_a_plain_one():
    traces = []
    for refuse in (True, False):
        bench = loss_checked()
        if refuse:
            checked(bench, INF)
        else:
            bench.engine.before_step(forecast=False)
            loss = bench.loss()
            loss.backward()
            bench.optimizer.step()
            bench.engine.after_step(loss)
        traces.append(bench.trace())
    assert same_bits(*traces)


def test_passed_check_changes_nothing_about_the_step():
    traces = []
    for check in (True, False):
        bench = loss_checked()
        if check:
            checked(bench, 1.0)
        else:
            bench.step()
        traces.append(bench.trace())
    assert same_bits(*traces)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"loss_check_every": 1}, 20),
        ({"loss_check_every": 4}, 6),
        ({"loss_tolerance": None}, 0),
        ({"shadow": True}, 0),
        ({"horizon": FixedHorizon(updates=0.0)}, 0),
    ],
    ids=["always", "every-4th", "off", "shadow", "nothing-to-check"],
)
def test_loss_is_checked_at_every_nth_forecast(changes, passes):
    bench = Bench(
        make_config(**{"loss_tolerance": 0.1, "loss_check_every": 1, "speedup": 1, **changes})
    )
    for _ in range(12):
        checked(bench, 1.0)
    assert bench.engine.ledger.forward_passes == passes


@pytest.mark.parametrize(
    ("finite", "after", "verdict"),
    [
        (False, [9.0, 9.0], Verdict.REJECTED),
        (True, [1.0, 2.0], Verdict.ACCEPTED),
        (True, [0.5, 3.0], Verdict.ACCEPTED),
        (True, [0.5, 2.0], Verdict.SHRUNK),
    ],
)
def test_verdict_follows_finiteness_and_horizons(finite, after, verdict):
    info = GradientInfo(1.0, 1.0, finite, NAN)
    assert judge(info, [1.0, 2.0], after) is verdict


def test_gradients_are_measured_without_those_that_are_missing():
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    a.grad = torch.tensor([3.0, 4.0])
    probe = GradientProbe([a, b])
    assert probe.total_norm().item() == pytest.approx(5.0)
    measured = probe.products([a], [torch.tensor([-6.0, -8.0])])
    assert [m.tolist() for m in measured] == [[5.0], [10.0], [-50.0]]


def test_sparse_gradients_are_measured_as_dense_ones():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    probe = GradientProbe([table.weight])
    assert probe.total_norm().item() == pytest.approx((2 * 4 + 2 * 1) ** 0.5)


@pytest.mark.parametrize("lag", [0, 1, 4])
def test_measurements_are_read_a_fixed_number_of_steps_later(lag):
    reader = LateReader(lag)
    read = []
    for k in range(8):
        reader.push(k, torch.tensor([float(k)]))
        read.append(reader.pop())
    wanted = [None if k < lag else (k - lag, [float(k - lag)]) for k in range(8)]
    assert read == wanted
    fresh = LateReader(lag)
    fresh.load_state_dict(reader.state_dict())
    drained = [fresh.pop(drain=True) for _ in range(lag + 1)]
    assert drained == [*((k, [float(k)]) for k in range(8 - lag, 8)), None]
