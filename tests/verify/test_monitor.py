"""Baselines and limits, pauses that get longer, and what a run does whose loss rises."""

import math

import pytest
from loops import Bench, make_config, same_bits

from hybrid_predict import CheckpointError, Phase
from hybrid_predict.verify.monitor import CALM, MOST_PAUSES, PATIENCE, PAUSE, Baseline, Monitor

NAN, INF = math.nan, math.inf


def calm(monitor, count=40, loss=1.0, norm=1.0, warmup=5):
    """Readings that swing by 2 % around a level."""
    for k in range(count):
        swing = 1.0 + 0.02 * (-1) ** k
        monitor.add(loss * swing, [norm * swing], warmup=k < warmup)
    return monitor


def test_a_baseline_is_known_after_enough_readings_and_passes_over_what_is_not_finite():
    baseline = Baseline()
    for k in range(Baseline.LEAST):
        assert not baseline.known
        baseline.add(float(k % 2))
        baseline.add(NAN)
        baseline.add(INF)
    assert baseline.known
    assert baseline.mean == pytest.approx(0.5)
    assert baseline.deviation == pytest.approx(0.5)


def test_an_outlier_moves_a_baseline_no_further_than_its_reach():
    baseline = Baseline()
    for k in range(100):
        baseline.add(1.0 + 0.1 * (-1) ** k)
    before, width = baseline.mean, baseline.deviation
    baseline.add(1e9)
    assert baseline.mean - before == pytest.approx((1 - Baseline.DECAY) * Baseline.REACH * width)


@pytest.mark.parametrize("level", [1.0, -3.0, 1e-3])
def test_limits_stand_as_far_off_as_the_page_says(level):
    monitor = calm(Monitor(1), loss=level, norm=5.0)
    mean, width = monitor.loss.mean, monitor.loss.deviation
    assert monitor.loss_limit == pytest.approx(mean + max(12 * width, 3 * abs(mean)))
    # The norm swings by 2 %, so a factor of 100 is further off than eight deviations.
    assert monitor.norm_limit(0) == pytest.approx(500.0, rel=0.05)


def test_limits_are_infinite_before_anything_is_known():
    monitor = Monitor(2)
    assert (monitor.loss_limit, monitor.norm_limit(1)) == (INF, INF)


def test_norms_of_several_optimizers_have_limits_of_their_own():
    monitor = Monitor(2)
    for _ in range(10):
        monitor.add(1.0, [1.0, 1e-3], warmup=False)
    assert monitor.norm_limit(0) == pytest.approx(100.0)
    assert monitor.norm_limit(1) == pytest.approx(0.1)


def test_pauses_double_and_the_alarm_after_the_last_ends_predicted_steps():
    monitor, step = Monitor(1), 100
    for length in (PAUSE, 2 * PAUSE, 4 * PAUSE):
        monitor.alarm(step)
        monitor.alarm(step + 1)  # in a pause, another alarm is no news
        assert monitor.pausing(step + length)
        step += length + 1
        assert not monitor.pausing(step)
    assert monitor.counts["pauses"] == MOST_PAUSES
    monitor.alarm(step)
    assert monitor.pausing(10**9)


@pytest.mark.parametrize(("steps", "forgotten"), [(CALM, True), (CALM - 1, False)])
def test_a_long_calm_forgives(steps, forgotten):
    monitor = Monitor(1)
    monitor.alarm(1)
    calm(monitor, steps)
    assert (monitor.counts["pauses"] == 0) is forgotten


@pytest.mark.parametrize(
    ("losses", "risen"),
    [
        ([1.5] * 100, True),
        ([1.1] * 100, False),
        ([NAN] * 100, False),
        ([0.99**k for k in range(200)], False),
        ([1.5] * (PATIENCE // 2), False),
    ],
)
def test_a_loss_that_stays_a_fifth_above_the_warm_up_is_seen(losses, risen):
    monitor = calm(Monitor(1))
    for loss in losses:
        monitor.add(loss, [1.0], warmup=False)
    assert monitor.risen is risen


@pytest.mark.parametrize("level", [0.0, 0.01, -0.01])
def test_the_noise_of_a_loss_near_zero_is_no_rise(level):
    noise = [0.5 * math.sin(k * k) for k in range(400)]
    monitor = Monitor(1)
    for k, swing in enumerate(noise):
        monitor.add(level + swing, [1.0], warmup=k < 40)
        assert not monitor.risen
    for swing in noise[:100]:
        monitor.add(level + swing + 2.0, [1.0], warmup=False)
    assert monitor.risen


def test_a_run_whose_loss_rises_falls_back_to_plain_training():
    bench = Bench(make_config(total_steps=400, warmup_steps=20))
    records = []
    while not bench.engine.done:
        factor = 1.0 if bench.taken < 30 else 3.0
        records.append(bench.step(lambda model, loss, factor=factor: loss * factor))
    assert records[-1].phase is Phase.PLAIN
    (reason,) = [e["reason"] for e in bench.engine.ledger.events if "fell back" in e["reason"]]
    assert "training loss stands above" in reason and "watch_loss=False" in reason
    assert bench.engine.ledger.steps == 400


def test_a_loss_that_need_not_fall_decides_nothing():
    bench = Bench(make_config(total_steps=150, warmup_steps=20, watch_loss=False))
    records = []
    while not bench.engine.done:  # the gradients stay as they are
        rise = 0.0 if bench.taken < 30 else 1e6
        records.append(bench.step(lambda model, loss, rise=rise: loss + rise))
    ledger = bench.engine.ledger
    assert Phase.PLAIN not in {record.phase for record in records}
    assert (ledger.steps, ledger.undone_steps, ledger.events) == (150, 0, [])
    assert ledger.predicted_steps > 20 and records[-1].loss > 1e5
    monitor = Monitor(1, watch_loss=False)
    monitor.load_state_dict(calm(Monitor(1)).state_dict())
    assert monitor.loss_limit == INF and not math.isinf(monitor.norm_limit(0))


def test_a_saved_monitor_goes_on_as_before():
    monitor = calm(Monitor(1))
    monitor.alarm(50)
    fresh = Monitor(1)
    fresh.load_state_dict(monitor.state_dict())
    for one in (monitor, fresh):
        calm(one, 10, loss=2.0)
    assert same_bits(fresh.state_dict(), monitor.state_dict())


@pytest.mark.parametrize(
    "change",
    [{"loss": [NAN, 1.0, 3]}, {"norms": []}, {"counts": {"until": 1.5}}],
    ids=["baseline", "optimizers", "counts"],
)
def test_a_damaged_state_is_refused(change):
    state = calm(Monitor(1)).state_dict()
    state = {**state, **change}
    if "counts" in change:
        state["counts"] = {**Monitor(1).counts, **change["counts"]}
    with pytest.raises(CheckpointError, match="expected"):
        Monitor(1).load_state_dict(state)


def test_a_gradient_that_is_zero_for_long_is_no_baseline():
    monitor = Monitor(1)
    for _ in range(30):
        monitor.add(1.0, [0.0], warmup=False)
    assert monitor.norm_limit(0) == math.inf
    for _ in range(30):
        monitor.add(1.0, [2.0], warmup=False)
    assert 2.0 < monitor.norm_limit(0) < 1000


def test_a_norm_that_never_changes_does_not_make_all_others_outliers():
    monitor = Monitor(1)
    for norm in [2.0] * 20 + [3.0] * 200:
        monitor.add(1.0, [norm], warmup=False)
    assert monitor.norms[0].mean == pytest.approx(math.log(3.0), abs=0.01)
