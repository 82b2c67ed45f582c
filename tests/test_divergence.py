"""The monitor is silent on healthy runs, answers by grade on others, and survives a resume."""

import math
from dataclasses import replace

import pytest
import torch

from cases import EVERY_KIND
from faulty import WrongWay, state
from hybrid_predict import AlignmentHorizon, CheckpointError, FixedHorizon, HybridEngine
from hybrid_predict.bench.arms import Rates, adamw
from hybrid_predict.divergence import (
    MOST_PAUSES,
    REASONS,
    Answer,
    DivergenceMonitor,
    Limits,
)
from hybrid_predict.gradients import GradientInfo
from hybrid_predict.tasks import TASKS
from loops import Bench, make_config, same_bits, spoil_with

NAN = math.nan


def info(loss=1.0, norm=1.0, alignments=(), residual=NAN):
    return GradientInfo(loss, norm, True, residual, tuple(alignments))


def fed(readings, start=40, monitor=None, first=1, limits=None):
    """A monitor after a calm start and some readings, with the alarms in order."""
    monitor = monitor or DivergenceMonitor(patience=32)
    alarms = []
    calm = [info(1.0 + 0.02 * (-1) ** k) for k in range(start)]
    for step, reading in enumerate([*calm, *readings], first):
        found = monitor.add(step, reading, limits or monitor.limits, warmup=step <= 5, applied=True)
        alarms.append(found)
    assert not any(alarms[:start])
    return monitor, [a for a in alarms if a is not None]


@pytest.mark.parametrize(
    ("readings", "signal", "answer"),
    [
        ([info(2.0)] * 2, "loss", Answer.SHRINK),
        ([info(10.0)], "loss", Answer.ROLL_BACK),
        ([info(norm=50.0)] * 2, "gradient", Answer.SHRINK),
        ([info(norm=1e6)], "gradient", Answer.ROLL_BACK),
        ([info(norm=1e-4)] * 30, "vanished", Answer.PAUSE),
        ([info(0.5)] * 30 + [info(0.5 + 0.01 * k) for k in range(150)], "lost", Answer.PAUSE),
        ([info(alignments=[-0.9, -0.7])] * 30, "uphill", Answer.SHRINK),
        ([info(alignments=[0.0, 0.0])] * 30, "nowhere", Answer.PAUSE),
        ([info(alignments=[(-1) ** k]) for k in range(30)], "swinging", Answer.SHRINK),
        ([info(residual=40.0)] * 30, "residual", Answer.SHRINK),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_signal_has_its_answer(readings, signal, answer):
    _, alarms = fed(readings)
    assert (alarms[0].reason, alarms[0].answer) == (REASONS[signal], answer)
    assert alarms[0].figures


@pytest.mark.parametrize(
    "readings",
    [
        [info(1.4)] * 3,
        [info(2.0), *[info(1.0)] * 20, info(2.0)],
        [info(0.99**k, norm=0.99**k) for k in range(400)],
        [info(0.9**k, norm=0.8**k) for k in range(60)],
        [info(norm=8.0)] * 40,
        [info(alignments=[-0.1, 0.05])] * 60,
        [info(alignments=[-0.6, -0.4])] * 60,
        [info(alignments=[0.9])] * 60,
        [info(loss=NAN)] * 40,
        [info(residual=1.5)] * 60,
    ],
)
def test_what_healthy_runs_do_is_no_alarm(readings):
    _, alarms = fed(readings)
    assert alarms == []


def test_nothing_is_judged_before_there_is_a_baseline_or_at_base_weights():
    monitor = DivergenceMonitor(patience=32)
    for step in range(1, 8):
        wild = info(10.0 ** (step % 5), norm=10.0**step)
        assert not monitor.add(step, wild, monitor.limits, warmup=False, applied=True)
    assert monitor.limits == Limits()
    monitor, _ = fed([])
    for step in range(41, 60):
        spike = info(1e6, norm=1e9)
        assert not monitor.add(step, spike, monitor.limits, warmup=False, applied=False)


def test_pauses_double_and_then_the_run_is_handed_over():
    monitor, lengths, step = fed([])[0], [], 41
    while not monitor.unpaid:
        monitor.add(step, info(1e3), Limits(loss=100.0), warmup=False, applied=True)
        start = step
        while monitor.pausing(step + 1):
            step += 1
            monitor.add(step, info(), monitor.limits, warmup=False, applied=False)
        lengths.append(step - start)
        step += 1
    assert lengths == [16, 32, 64, 128][: MOST_PAUSES + 1]
    assert "paused" in monitor.unpaid


def test_a_long_calm_forgives():
    monitor, _ = fed([info(10.0)])
    assert monitor.state_dict()["counts"]["pauses"] == 1
    for step in range(50, 50 + 500):
        monitor.add(step, info(), monitor.limits, warmup=False, applied=True)
    assert monitor.state_dict()["counts"]["pauses"] == 0


@pytest.mark.parametrize("period", [1, 3])
def test_a_loss_that_stays_above_where_forecasts_began_hands_over(period):
    monitor = DivergenceMonitor(patience=32)
    for step in range(1, 400):
        rising = info(1.0 if step <= 20 else 1.0 + 0.005 * (step - 20))
        applied = step > 20 and step % period == 0
        monitor.add(step, rising, monitor.limits, warmup=step <= 20, applied=applied)
        if monitor.unpaid:
            break
    assert "loss" in monitor.unpaid or "paused" in monitor.unpaid
    assert step < 200 * period


def test_saved_monitor_goes_on_as_the_original():
    readings = [info(1 + 0.3 * math.sin(k), 2 + math.cos(k), [math.sin(2 * k)]) for k in range(90)]
    whole, _ = fed(readings)
    first, _ = fed(readings[:37])
    second = DivergenceMonitor(patience=32)
    second.load_state_dict(first.state_dict())
    fed(readings[37:], start=0, monitor=second, first=78)
    assert second.state_dict() == whole.state_dict()


def test_state_without_a_number_is_refused():
    state = DivergenceMonitor(patience=3).state_dict()
    state["baselines"]["norm"] = [math.inf, 0.0, 3]
    with pytest.raises(CheckpointError, match="baselines"):
        DivergenceMonitor(patience=3).load_state_dict(state)


def test_a_shrink_shortens_horizons_and_at_their_floors_pauses():
    adapting = AlignmentHorizon(floors=dict.fromkeys(EVERY_KIND, 0.0), rate=0.4)
    for horizon, paused in ((adapting, False), (FixedHorizon(updates=2.0), True)):
        bench = Bench(make_config(total_steps=400, horizon=horizon, warmup_fraction=0.1))
        bench.train(80)
        before = bench.engine.horizons
        bench.step(spoil_with(factor=2.4))
        bench.step(spoil_with(factor=2.4))
        after = bench.engine.horizons
        (event,) = [e for e in bench.engine.ledger.events if REASONS["loss"] in e["reason"]]
        if paused:
            assert event["reason"].endswith(Answer.PAUSE.value)
            assert bench.step().horizon == 0
        else:
            assert event["reason"].endswith(Answer.SHRINK.value)
            assert sum(after.values()) < sum(before.values())


@pytest.mark.parametrize("lag", [0, 3])
def test_a_spike_at_a_forecast_point_is_undone_also_where_reading_is_late(lag):
    config = make_config(total_steps=400, warmup_fraction=0.05, lag=lag)
    bench = Bench(config, "conv")
    bench.train(50)
    before = state(bench)
    record = bench.step(spoil_with(factor=30.0))
    assert record.horizon > 0
    assert same_bits(before, state(bench))
    records = bench.train(lag + 2)
    assert records[-1].horizon == 0
    assert bench.engine.ledger.rejected == 1


def test_a_spike_at_base_weights_is_the_users_own():
    traces = []
    for config in (None, make_config(total_steps=400, warmup_fraction=0.2)):
        bench = Bench(config)
        bench.train(50)
        bench.step(spoil_with(factor=30.0))
        traces.append(bench.trace())
    assert same_bits(*traces)


def trained(name, rate, steps=240, predictor=None, updates=None):
    """A shortened task under forecasts, at its tuned rate: the engine, and the final loss."""
    task = replace(TASKS[name], steps=steps)
    model = task.model(0)
    (optimizer,) = adamw(model, task.recipe, Rates(rate), steps)
    changes = {"predictors": {"hidden": predictor}} if predictor else {"predictors": None}
    changes["horizon"] = FixedHorizon(updates=updates) if updates else "alignment"
    if not predictor:
        changes["predictors"] = {"hidden": "spectral"}
    config = make_config(total_steps=steps, speedup=1.5, warmup_fraction=0.03, **changes)
    engine, batches = HybridEngine(model, optimizer, config), task.batches(0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
    while not engine.done:
        engine.before_step()
        loss = task.full_step(model, next(batches), optimizer)
        for _ in range(engine.after_step(loss).ticks):
            schedule.step()
    engine.detach()
    return engine, task.final_loss(model)


@pytest.mark.parametrize(("name", "rate"), [("cnn", 0.032), ("inr", 0.016), ("mlp", 0.008)])
def test_healthy_tasks_at_their_tuned_rates_have_no_event(name, rate):
    engine, _ = trained(name, rate)
    assert engine.ledger.events == []
    assert engine.ledger.forecasts > 100


def test_a_task_that_forecasts_destabilise_is_caught_and_trains_on():
    healthy, wanted = trained("mlp", 0.008)
    engine, loss = trained("mlp", 0.008, predictor=WrongWay(), updates=9.0)
    reasons = [event["reason"] for event in engine.ledger.events]
    assert any("handed over" in reason for reason in reasons)
    assert engine.ledger.full_steps > healthy.ledger.full_steps
    assert math.isfinite(loss)
    assert engine.ledger.equivalent_steps == 240
    assert wanted < 2.0
