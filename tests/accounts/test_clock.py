"""The clock: which of a run's steps are planned as predicted ones, and how far the run is."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import CheckpointError, ConfigError, HybridConfig, Phase
from hybrid_predict.accounts.clock import Clock


def plan(clock, stands=lambda k: True):
    """The run as a list of steps, ``F`` or ``P``, in which predicted step k stands or is undone."""
    steps, made = "", 0
    while not clock.done:
        due = clock.due
        clock.predict(due)
        good = stands(made) if due else True
        made += bool(due)
        clock.advance(due if good else 0, 0 if good else due)
        steps += "P" * (due if good else 0) + "F"
    return steps


def config(total=100, **changes):
    return HybridConfig(**{"total_steps": total, **changes})


@pytest.mark.parametrize("total", [20, 100, 997, 10_000])
@pytest.mark.parametrize("speedup", [1, 1.25, 1.5, 1.9, 2, 3.7])
def test_a_run_takes_total_over_speedup_full_steps(total, speedup):
    clock = Clock(config(total, speedup=speedup, warmup_steps=2, cooldown_steps=1))
    steps = plan(clock)
    assert len(steps) == total == clock.steps
    wanted = round(total / Fraction(speedup).limit_denominator(1000))
    assert steps.count("F") == max(wanted, total - clock.planned) == clock.full_steps
    if not clock.shortfall:
        assert steps.count("F") == wanted
    if speedup < 2:
        assert "PP" not in steps
    assert steps[:2] == "FF"
    assert steps[-1] == "F"


@given(
    total=st.integers(1, 400),
    speedup=st.floats(1, 8),
    warmup=st.one_of(st.integers(0, 50), st.floats(0, 0.9)),
    cooldown=st.one_of(st.integers(0, 50), st.floats(0, 0.9)),
    seed=st.randoms(use_true_random=False),
)
def test_whatever_is_undone_a_run_never_overshoots(total, speedup, warmup, cooldown, seed):
    clock = Clock(config(total, speedup=speedup, warmup_steps=warmup, cooldown_steps=cooldown))
    steps = plan(clock, lambda k: seed.random() < 0.5)
    assert len(steps) == total
    assert steps.count("P") <= clock.planned <= clock.wanted
    assert "P" not in steps[: clock.warmup]
    assert "P" not in steps[total - clock.cooldown :]
    most = 1 if speedup < 2 else math.ceil(2 * (speedup - 1))
    assert "P" * (most + 1) not in steps


@given(total=st.integers(10, 400), speedup=st.floats(1.05, 6))
def test_predicted_steps_are_spread_evenly(total, speedup):
    clock = Clock(config(total, speedup=speedup, warmup_steps=3, cooldown_steps=3))
    steps = plan(clock)
    runs = [len(list(group)) for key, group in itertools.groupby(steps[3:-3])]
    inner = runs[1:-1]
    full, predicted = inner[::2], inner[1::2]
    if not steps[3:-3].startswith("P"):
        full, predicted = predicted, full
    for lengths in (full, predicted):
        assert not lengths or max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("full", "predicted", "pattern"),
    [(1, 1, "FP" * 4), (2, 1, "FFP" * 3), (1, 2, "FPP" * 3), (3, 2, "FFFPP" * 2)],
)
def test_a_pattern_is_repeated_between_warmup_and_cooldown(full, predicted, pattern):
    clock = Clock(
        config(60, full_steps=full, predict_steps=predicted, warmup_steps=4, cooldown_steps=3)
    )
    steps = plan(clock)
    assert steps.startswith("FFFF" + pattern)
    assert steps.endswith("FFF")
    assert steps.count("P") == clock.planned


@pytest.mark.parametrize(
    ("warmup", "cooldown", "wanted"),
    [
        (0.1, 0.05, (10, 5)),
        (7, 3, (7, 3)),
        (0, 0.0, (1, 1)),
        (0.011, 500, (2, 100)),
    ],
)
def test_lengths_are_steps_or_shares_of_the_run(warmup, cooldown, wanted):
    clock = Clock(config(warmup_steps=warmup, cooldown_steps=cooldown))
    assert (clock.warmup, clock.cooldown) == wanted


@pytest.mark.parametrize(
    ("changes", "planned"),
    [
        ({"speedup": 1}, 0),
        ({"enabled": False}, 0),
        ({"shadow": True}, 0),
        ({"predictors": {}}, 0),
        ({"speedup": "auto"}, 33),
        ({}, 33),
        ({"speedup": 2}, 50),
    ],
)
def test_as_many_steps_are_planned_as_the_configuration_asks_for(changes, planned):
    clock = Clock(config(**changes))
    assert clock.planned == planned
    assert plan(clock).count("P") == planned
    assert clock.shortfall == ""


@pytest.mark.parametrize("changes", [{"speedup": 1.9}, {"speedup": 3.0}])
def test_what_does_not_fit_is_told_with_the_remedy(changes):
    clock = Clock(config(warmup_steps=30, cooldown_steps=30, **changes))
    assert clock.planned < clock.wanted
    assert f"only {clock.planned} of {clock.wanted} predicted steps fit" in clock.shortfall
    assert "lower warmup_steps" in clock.shortfall
    assert plan(clock).count("P") == clock.planned


def test_phases_follow_the_position():
    clock = Clock(config(12, full_steps=1, predict_steps=1, warmup_steps=3, cooldown_steps=2))
    phases = []
    while not clock.done:
        due = clock.due
        phases.append(clock.phase(due))
        clock.predict(due)
        clock.advance(due)
    warm, full, predict = Phase.WARMUP, Phase.FULL, Phase.PREDICT
    assert phases == [warm] * 3 + [full] + [predict] * 3 + [Phase.COOLDOWN] * 2


def test_unread_steps_count_for_the_position_and_not_for_the_length():
    clock = Clock(config(20, full_steps=1, predict_steps=1, warmup_steps=2, cooldown_steps=1))
    for _ in range(3):
        clock.advance()
    assert clock.due == 1
    clock.predict(1)
    assert clock.due == 0
    assert clock.advance() == 1
    assert (clock.steps, clock.position) == (4, 5)
    assert clock.due == 1
    clock.predict(1)
    assert clock.advance(standing=1) == 2
    assert (clock.steps, clock.position) == (6, 7)
    assert clock.advance(undone=1) == 1
    assert (clock.steps, clock.position, clock.unread) == (7, 7, 0)


def test_after_falling_back_all_steps_are_full_and_plain():
    clock = Clock(config())
    clock.advance()
    clock.fall_back()
    assert clock.phase() is Phase.PLAIN
    assert "P" not in plan(clock)
    assert clock.full_steps == 100


def test_the_length_of_the_run_is_required():
    with pytest.raises(ConfigError, match=r"total_steps: .*Set HybridConfig\(total_steps=...\)"):
        Clock(HybridConfig())


def test_a_saved_clock_goes_on_where_it_was():
    whole = Clock(config())
    wanted = plan(whole)
    clock = Clock(config())
    for cut in (0, 3, 50):
        clock = Clock(config())
        while clock.steps < cut:
            due = clock.due
            clock.predict(due)
            clock.advance(due)
        fresh = Clock(config())
        fresh.load_state_dict(clock.state_dict())
        assert plan(fresh) == wanted[clock.steps :]


GOOD = Clock(config()).state_dict() | {"steps": 9, "full_steps": 7, "unread": 1}
DAMAGED = [("steps", -1), ("steps", 3), ("full_steps", 1.5), ("unread", True), ("unread", "one")]


@pytest.mark.parametrize(("name", "value"), DAMAGED)
def test_a_damaged_clock_is_refused(name, value):
    clock = Clock(config())
    clock.load_state_dict(GOOD)
    with pytest.raises(CheckpointError, match="state: expected"):
        clock.load_state_dict({**GOOD, name: value})
    assert clock.state_dict() == GOOD


def test_a_count_of_somebody_else_wins():
    clock = Clock(config())
    clock.load_state_dict(GOOD)
    clock.resume(40, 38)
    assert (clock.steps, clock.full_steps, clock.unread) == (40, 38, 0)
