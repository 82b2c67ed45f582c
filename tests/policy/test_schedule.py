"""Which of a run's steps are planned as predicted steps, and the phases of full steps."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import Phase
from hybrid_predict.policy.schedule import due, phase, schedule


def plan(planned, stands=lambda k: True):
    """The run as a list of steps, ``F`` or ``P``, in which predicted steps stand or are undone."""
    steps, groups = "", 0
    while len(steps) < planned.total:
        count = due(planned, len(steps))
        groups += bool(count)
        steps += "P" * (count if stands(groups) else 0) + "F"
    return steps


def make(total=100, **changes):
    return schedule(HybridConfig(**{"total_steps": total, **changes}))


lengths = st.one_of(st.integers(0, 50), st.floats(0, 0.9))


@given(
    total=st.integers(1, 400),
    speedup=st.floats(1, 8),
    warmup=lengths,
    cooldown=lengths,
    seed=st.randoms(use_true_random=False),
)
def test_whatever_is_undone_a_run_never_overshoots(total, speedup, warmup, cooldown, seed):
    planned = make(total, speedup=speedup, warmup_steps=warmup, cooldown_steps=cooldown)
    steps = plan(planned, lambda k: seed.random() < 0.5)
    assert len(steps) == total
    assert steps.count("P") <= planned.planned <= planned.wanted
    assert "P" not in steps[: planned.warmup]
    assert "P" not in steps[total - planned.cooldown :]
    most = 1 if speedup < 2 else math.ceil(2 * (speedup - 1))
    assert "P" * (most + 1) not in steps


@given(total=st.integers(10, 400), speedup=st.floats(1.05, 6))
def test_predicted_steps_are_spread_evenly(total, speedup):
    steps = plan(make(total, speedup=speedup, warmup_steps=3, cooldown_steps=3))[3:-3]
    groups = [(key, len(list(group))) for key, group in itertools.groupby(steps)][1:-1]
    for wanted in "FP":
        sizes = [size for key, size in groups if key == wanted]
        assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("full", "predicted", "pattern"), [(1, 1, "FP" * 4), (3, 2, "FFFPP" * 2)])
def test_a_pattern_is_repeated_between_warmup_and_cooldown(full, predicted, pattern):
    planned = make(60, full_steps=full, predict_steps=predicted, warmup_steps=4, cooldown_steps=3)
    steps = plan(planned)
    assert steps.startswith("FFFF" + pattern)
    assert steps.endswith("FFF")
    assert steps.count("P") == planned.planned


@pytest.mark.parametrize(
    ("warmup", "cooldown", "wanted"),
    [(0.1, 0.05, (10, 5)), (7, 3, (7, 3)), (0, 0.0, (1, 1)), (0.011, 500, (2, 100))],
)
def test_lengths_are_steps_or_shares_of_the_run(warmup, cooldown, wanted):
    planned = make(warmup_steps=warmup, cooldown_steps=cooldown)
    assert (planned.warmup, planned.cooldown) == wanted


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"speedup": 1}, 0),
        ({"shadow": True}, 0),
        ({"predictors": {}}, 0),
        ({"speedup": "auto"}, 72),
        ({}, 33),
        ({"speedup": 2}, 50),
    ],
)
def test_as_many_steps_are_planned_as_the_configuration_asks_for(changes, count):
    planned = make(**changes)
    assert planned.planned == plan(planned).count("P") == count
    assert planned.shortfall == ""


def test_what_does_not_fit_is_told_with_the_remedy():
    planned = make(warmup_steps=30, cooldown_steps=30, speedup=3.0)
    assert planned.planned < planned.wanted
    assert f"only {planned.planned} of {planned.wanted} predicted steps" in planned.shortfall
    assert planned.shortfall.endswith("train longer, or lower speedup")
    assert plan(planned).count("P") == planned.planned


def test_the_warm_up_lasts_until_skill_can_be_known():
    config = HybridConfig(total_steps=100, warmup_steps=5)
    assert [schedule(config, count).warmup for count in (0, 40, 500)] == [5, 40, 100]


def test_phases_follow_the_position():
    planned = make(12, full_steps=1, predict_steps=1, warmup_steps=3, cooldown_steps=2)
    phases, position = [], 0
    while position < 12:
        count = due(planned, position)
        phases.append(phase(planned, position, count, waiting=False, plain=False))
        position += 1 + count
    warm, full, predict = Phase.WARMUP, Phase.FULL, Phase.PREDICT
    assert phases == [warm] * 3 + [full] + [predict] * 3 + [Phase.COOLDOWN] * 2
    assert phase(planned, 5, 0, waiting=True, plain=False) is warm
    assert phase(planned, 5, 1, waiting=False, plain=True) is Phase.PLAIN


def test_the_length_of_the_run_is_required():
    with pytest.raises(ConfigError, match=r"total_steps: .*Set HybridConfig\(total_steps=...\)"):
        schedule(HybridConfig())
