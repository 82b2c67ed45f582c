"""The clock, the records and the ledger of a run."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases import OPTIMIZERS
from hybrid_predict import (
    AlignmentHorizon,
    ConfigError,
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    Phase,
    SpectralPredictor,
    Verdict,
)
from hybrid_predict.phases import Clock
from loops import NAN, Bench, make_config, same_bits, spoil_with, weights


def run_clock(clock, accept=lambda k: True):
    """Ticks of a whole run in which forecast k earns its credit if it is accepted."""
    ticks, forecasts = [], 0
    while not clock.done:
        due = clock.forecast_due
        ticks.append(clock.advance(int(due and accept(forecasts))))
        forecasts += due
    return ticks


@pytest.mark.parametrize("total", [20, 100, 997, 10_000])
@pytest.mark.parametrize("speedup", [1, 1.25, 1.5, 2, 3.7])
@pytest.mark.parametrize(("period", "correct_steps"), [(1, 0), (2, 1), (4, 4)])
def test_accepted_forecasts_end_the_run_after_total_over_speedup_full_steps(
    total, speedup, period, correct_steps
):
    config = HybridConfig(
        total_steps=total, speedup=speedup, period=period, correct_steps=correct_steps
    )
    clock = Clock(config)
    ticks = run_clock(clock)
    most = 2 * Fraction(speedup).limit_denominator(1000)
    planned = round(total / Fraction(speedup).limit_denominator(1000))
    if speedup == 1 or clock.credit < most - 1:
        assert len(ticks) == planned
    else:
        assert planned <= len(ticks) < total
    assert sum(ticks) == clock.equivalent_steps == total
    assert min(ticks) >= 1
    assert max(ticks) <= math.ceil(most)


@given(
    total=st.integers(1, 400),
    speedup=st.floats(1, 8),
    warmup=st.floats(0, 0.5),
    cooldown=st.floats(0, 0.5),
    period=st.integers(1, 6),
    correct_steps=st.integers(0, 6),
    seed=st.randoms(use_true_random=False),
)
def test_ticks_never_overshoot_whatever_is_accepted(
    total, speedup, warmup, cooldown, period, correct_steps, seed
):
    config = HybridConfig(
        total_steps=total,
        speedup=speedup,
        warmup_fraction=warmup,
        cooldown_fraction=cooldown,
        period=period,
        correct_steps=correct_steps,
    )
    clock = Clock(config)
    ticks = run_clock(clock, lambda k: seed.random() < 0.5)
    assert sum(ticks) == total
    assert min(ticks) >= 1
    assert total / (2 * speedup + 1) <= len(ticks) <= total
    warm = math.ceil(warmup * total)
    assert ticks[:warm] == [1] * min(warm, len(ticks))


def test_no_more_is_handed_out_than_the_speedup_stands_for():
    clock = Clock(HybridConfig(total_steps=100, speedup=2, warmup_fraction=0))
    ticks = [clock.advance(credited) for credited in (3, 0, 3, 0, 60, 9)]
    earned = [min(50, math.floor(n * clock.credit)) for n in (3, 3, 6, 6, 66, 75)]
    assert [sum(ticks[: k + 1]) - (k + 1) for k in range(6)] == earned
    assert earned[-1] == 50


def test_nothing_is_handed_out_after_the_hand_over():
    clock = Clock(HybridConfig(total_steps=100, speedup=2))
    clock.advance(5)
    clock.hand_over()
    assert [clock.advance(5) for _ in range(3)] == [1, 1, 1]


def test_phases_follow_each_other():
    config = make_config(
        total_steps=30, speedup=1, cooldown_fraction=0.1, period=2, correct_steps=1
    )
    phases = [record.phase for record in Bench(config).finish()]
    cycle = [Phase.PREDICT, Phase.PREDICT, Phase.CORRECT]
    expected = [Phase.WARMUP] * 2 + (cycle * 9)[:25] + [Phase.COOLDOWN] * 3
    assert phases == expected


def test_forecasts_are_made_only_at_the_start_of_a_cycle():
    records = Bench(make_config(speedup=1, period=3, correct_steps=1)).finish()
    forecast = [record.step for record in records if record.horizon > 0]
    assert forecast == list(range(3, 29, 4))
    assert all(r.phase is Phase.PREDICT for r in records if r.horizon > 0)


def test_speedup_of_one_compresses_nothing_and_still_forecasts():
    bench = Bench(make_config(speedup=1))
    records = bench.finish()
    assert [record.ticks for record in records] == [1] * 30
    assert bench.engine.ledger.forecasts > 20


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("speedup", "full"), [(1.2, 25), (1.5, 20), (2, 15)])
def test_run_takes_total_over_speedup_full_steps(optimizer, speedup, full):
    bench = Bench(make_config(speedup=speedup), optimizer=optimizer)
    records = bench.finish()
    ledger = bench.engine.ledger
    assert (len(records), ledger.full_steps) == (full, full)
    assert sum(record.ticks for record in records) == ledger.equivalent_steps == 30
    assert ledger.saved_steps_fraction == pytest.approx(1 - full / 30)


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("spoiled", [(), (4, 9, 10)])
def test_verdicts_add_up_to_the_forecasts_once_they_are_read(lag, spoiled):
    bench = Bench(make_config(lag=lag, cooldown_fraction=0.2))
    while not bench.engine.done:
        bench.step(spoil_with(factor=NAN) if bench.taken in spoiled else None)
    ledger = bench.engine.ledger
    assert ledger.forecasts == ledger.accepted + ledger.shrunk + ledger.rejected
    assert ledger.rejected == len(spoiled)
    assert sum(event["count"] for event in ledger.events) == len(spoiled)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_record_is_about_its_own_step_and_reports_what_is_read_about_an_earlier_one(lag):
    bench, losses = Bench(make_config(lag=lag)), {}
    for k in range(1, 13):
        bench.engine.before_step()
        loss = bench.loss()
        losses[k] = loss.item()
        loss.backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
        bench.taken += 1
        record = bench.engine.after_step(loss)
        assert record.step == k
        assert (record.horizon > 0) == (record.phase is Phase.PREDICT) == (k > 2)
        assert record.read_step == (k - lag if k > lag else None)
        assert record.loss == (pytest.approx(losses[k - lag]) if k > lag else None)
        assert (record.verdict is None) == (k - lag <= 2)
        assert record.alignment is None or -1 <= record.alignment <= 1


def test_loss_may_be_a_tensor_a_number_or_missing():
    bench = Bench(make_config())
    found = []
    for loss in (torch.tensor([1.0, 3.0]), 2.5, None):
        bench.engine.before_step()
        bench.loss().backward()
        bench.optimizer.step()
        found.append(bench.engine.after_step(loss).loss)
    assert found == [2.0, 2.5, None]


def test_reading_alignment_less_often_leaves_the_other_forecasts_accepted():
    records = Bench(make_config(sample_every=4)).finish()
    verdicts = [r for r in records if r.verdict is not None]
    measured = [r.alignment is not None for r in verdicts]
    assert measured == [k % 4 == 0 for k in range(len(verdicts))]
    assert all(r.verdict is Verdict.ACCEPTED for r in verdicts if r.alignment is None)


def test_alignment_is_the_cosine_with_minus_the_gradient():
    bench = Bench(make_config(predictors={"hidden": "momentum"}), "mlp")
    bench.train(4)
    bench.engine.before_step()
    delta = bench.engine._window.delta
    loss = bench.loss()
    loss.backward()
    gradients = dict(bench.model.named_parameters())
    cosines = [
        -torch.cosine_similarity(gradients[name].grad.flatten(), direction.flatten(), dim=0).item()
        for name, direction in zip(delta.names, delta.directions, strict=True)
    ]
    bench.optimizer.step()
    record = bench.engine.after_step(loss)
    assert record.alignment == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)


def quadratic(horizon, sign):
    """Gradient flow on a slope: forecasts always point down; with sign -1 the slope flips."""
    model = nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = make_config(horizon=horizon, predictors={"hidden": "momentum"})
    engine = HybridEngine(model, optimizer, config)
    verdicts = []
    for k in range(12):
        engine.before_step()
        loss = model.weight.sum() * (sign if k > 5 else 1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        verdicts.append(engine.after_step(loss).verdict)
    return engine, verdicts


def test_forecast_downhill_is_accepted_and_lengthens_its_horizon():
    engine, verdicts = quadratic(AlignmentHorizon(floors={"hidden": 1.0}), 1)
    assert set(verdicts[2:]) == {Verdict.ACCEPTED}
    assert engine.horizons["weight"] > 2.0


def test_forecast_uphill_is_shrunk_never_rejected():
    engine, verdicts = quadratic(AlignmentHorizon(floors={"hidden": 1.0}), -1)
    assert verdicts[6] is Verdict.SHRUNK
    assert Verdict.REJECTED not in verdicts
    assert engine.ledger.shrunk >= 1


def test_forecast_of_length_zero_is_rejected_without_holding_its_horizon_down():
    rule = AlignmentHorizon(floors={})
    engine, verdicts = quadratic(rule, 1)
    assert verdicts[2:4] == [Verdict.REJECTED, Verdict.ACCEPTED]
    gain = 10 * rule.rate * (1 - rule.target)
    assert engine.horizons["weight"] == pytest.approx(math.expm1(gain), rel=1e-4)


def test_shadow_residual_is_the_distance_to_what_happened():
    # Constant velocity is foreseen exactly, so nothing is left over.
    model = nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = make_config(
        shadow=True, predictors={"hidden": "linear"}, horizon=FixedHorizon(updates=3.0)
    )
    engine, residuals = HybridEngine(model, optimizer, config), []
    for _ in range(12):
        engine.before_step()
        loss = model.weight.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        residuals.append(engine.after_step(loss).residual)
    scored = [r for r in residuals if r is not None]
    assert len(scored) == 3
    assert scored == pytest.approx([0.0] * 3, abs=1e-4)


def test_forecast_can_be_declined_for_one_step():
    bench = Bench(make_config())
    bench.train(5)
    bench.engine.before_step(forecast=False)
    loss = bench.loss()
    loss.backward()
    bench.optimizer.step()
    record = bench.engine.after_step(loss)
    assert (record.horizon, record.ticks, record.verdict) == (0.0, 1, None)


@pytest.mark.parametrize("count", [True, False])
def test_operations_of_a_full_step_are_counted_for_a_linear_layer(count):
    rows, inputs, outputs = 5, 7, 3
    model = nn.Linear(inputs, outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = HybridEngine(model, optimizer, make_config(count_flops=count))
    for _ in range(3):
        engine.before_step()
        model(torch.ones(rows, inputs)).sum().backward()
        optimizer.step()
        engine.after_step()
    # Forward and the weight's gradient; the input needs none. One multiply-add is two operations.
    assert engine.ledger.flops_per_step == (2 * 2 * rows * inputs * outputs if count else None)


@pytest.mark.parametrize(
    ("rows", "changes", "told"),
    [
        (2, {}, 1),
        (2, {"speedup": "auto"}, 1),
        (2, {"speedup": 1.0}, 0),
        (2, {"shadow": True}, 0),
        (2, {"shadow": True, "speedup": "auto"}, 0),
        (500, {}, 0),
    ],
)
@pytest.mark.parametrize("refresh_every", [1, 3])
def test_operations_of_a_forecast_are_counted_and_told_where_they_outweigh(
    rows, changes, told, refresh_every, caplog
):
    side, iterations = 8, 5
    model = nn.Sequential(nn.Linear(side, side, bias=False), nn.Tanh(), nn.Linear(side, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hidden = SpectralPredictor(refresh_every=refresh_every)
    config = make_config(count_flops=True, predictors={"hidden": hidden}, **changes)
    with HybridEngine(model, optimizer, config) as engine:
        for _ in range(6):
            engine.before_step()
            model(torch.ones(rows, side)).square().sum().backward()
            optimizer.step()
            engine.after_step()
    ledger = engine.ledger
    assert ledger.flops_per_forecast == iterations * 3 * 2 * side**3 / refresh_every
    assert ledger.learned == 5  # the first full step only shows what has a gradient
    saved = (ledger.equivalent_steps - ledger.cost) * ledger.flops_per_step
    assert ledger.estimated_flops_saved == saved - ledger.learned * ledger.flops_per_forecast
    reason = "forecasts take more operations than they save"
    assert sum(event["reason"] == reason for event in ledger.events) == told
    assert caplog.text.count(reason) == told


def test_model_without_hidden_matrices_trains_plainly():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.LayerNorm(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=12, patience=4))
    while not engine.done:
        engine.before_step()
        model(torch.tensor([[0, 1]])).sum().backward()
        optimizer.step()
        engine.after_step()
    assert engine.clock.handed_over
    assert engine.horizons == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_train_and_undo_alike(dtype):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine = HybridEngine(model, optimizer, make_config())
    base, spoiled = None, 8
    while not engine.done:
        engine.before_step()
        loss = model(torch.ones(3, 4, dtype=dtype)).square().mean()
        (loss * (NAN if engine.clock.full_steps == spoiled else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        record = engine.after_step(loss)
        if record.step == spoiled + 1:
            assert record.verdict is Verdict.REJECTED
            assert same_bits(weights(model), base)
        base = weights(model)
    assert engine.ledger.rejected == 1
    assert all(p.dtype == dtype and torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "missed"),
    [({}, False), ({"period": 20}, True), ({"speedup": 10}, False), ({"speedup": 1}, False)],
)
def test_unreachable_speedup_is_announced_with_what_is_reached(changes, missed):
    config = HybridConfig(**{"total_steps": 400, "speedup": 1.5, **changes})
    message = Clock(config).shortfall
    clock = Clock(config)
    reached = len(run_clock(clock))
    assert bool(message) is missed is (reached > round(400 / config.speedup))
    assert not missed or f"after {reached} full steps" in message


@pytest.mark.parametrize("loss", ["0.3", [0.3], object()])
def test_loss_that_is_no_number_is_refused_and_the_step_stays_open(loss):
    bench = Bench(make_config())
    bench.engine.before_step()
    with pytest.raises(ConfigError, match="loss"):
        bench.engine.after_step(loss)
    assert bench.engine.in_step
    bench.engine.after_step(0.3)


def test_optimizer_of_another_model_is_refused():
    model, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    with pytest.raises(ConfigError, match="optimizer"):
        HybridEngine(model, torch.optim.SGD(other.parameters(), lr=0.1), make_config())
