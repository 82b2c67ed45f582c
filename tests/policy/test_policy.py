"""Which parts predicted steps may move, and how many steps are due."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import HybridConfig
from hybrid_predict.config import MOST_PREDICTED
from hybrid_predict.policy.confidence import LONGEST, MOST, Confidence, Skill
from hybrid_predict.policy.limits import CHANGED, RETURN, Baseline
from hybrid_predict.policy.limits import LEAST as READINGS
from hybrid_predict.policy.policy import NOTHING, TOO_FEW, Outcome, make_policy
from hybrid_predict.policy.predicting import (
    LEAST,
    MOST_UNCORRECTED,
    NO_SKILL,
    TOO_EXPENSIVE,
    Part,
    PredictingPolicy,
)
from hybrid_predict.policy.verdict import ENDED, RESTARTED, Evidence, Slopes

SURE = Skill(count=2, mean=0.5)


def make(parts=(), trained=0, *, advances=(), speedup=1.5, total=100, unaffordable="", **changes):
    """A policy about parts, of which the advances and the skill are known."""
    policy = make_policy(HybridConfig(total_steps=total, speedup=speedup, **changes))
    for part, advance in zip(parts, advances, strict=False):
        policy.confidences[part.key] = Confidence(skill=SURE, best=0.8, advance=advance)
    policy.follow(parts, trained, affordable=not unaffordable)
    policy.set_length(total)
    return policy


def hidden(size, *, ready=True, **changes):
    return Part("hidden", 0, size, 20, resting=not ready, **changes)


def other(size, kind="head", *, ready=True, **changes):
    return Part(kind, 0, size, 20, resting=not ready, **changes)


@pytest.mark.parametrize(
    ("parts", "trained", "opened"),
    [
        ([hidden(100)], 100, True),
        ([hidden(60), hidden(40, ready=False)], 100, True),
        ([hidden(40), hidden(60, ready=False)], 100, False),
        ([hidden(100)], 400, True),
        ([hidden(100)], 401, False),
        ([hidden(25), other(75, ready=False)], 100, True),
        ([hidden(24), other(76, ready=False)], 100, False),
        ([other(100)], 100, False),
        ([], 0, True),  # nothing is closed where nothing is predicted
    ],
)
def test_ready_parts_need_most_gated_weights_and_a_quarter_of_all(parts, trained, opened):
    policy = make(parts, trained, advances=[1.0] * len(parts))
    assert policy.closed is not opened
    assert policy.blocked == {p for p in parts if p.resting or not opened}


@pytest.mark.parametrize(
    ("parts", "trained", "unaffordable", "reason"),
    [
        ([], 100, "", NOTHING),
        ([hidden(100)], 401, "", TOO_FEW),
        ([hidden(100)], 100, "", NO_SKILL),
        ([hidden(100)], 100, TOO_EXPENSIVE, TOO_EXPENSIVE),
    ],
)
def test_the_reason_is_what_stands_in_the_way_first(parts, trained, unaffordable, reason):
    policy = make(parts, trained, unaffordable=unaffordable)
    assert policy.reason == reason
    assert policy.locked is bool(unaffordable)
    assert policy.shortfall(50, 1, moves=False) == (reason if parts else "")
    assert policy.shortfall(50, 1, moves=True) == ""


parts_of = st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.0, MOST)), max_size=4)


@given(parts_of)
def test_the_number_of_predicted_steps_is_the_mean_advance_over_all_weights(pairs):
    parts = [Part("hidden", k, size, 20) for k, (size, _) in enumerate(pairs)]
    policy = make(parts, 0, advances=[advance for _, advance in pairs], speedup="auto")
    policy.blocked = frozenset()
    number = policy.per_full_step
    sizes = sum(size for size, _ in pairs)
    mean = min(sum(size * a for size, a in pairs) / max(1, sizes), MOST_PREDICTED)
    few = 4 * sum(size for size, a in pairs if a > 0) < sizes
    assert number == pytest.approx(0.0 if few or mean < LEAST else mean, rel=1e-6)
    for part in parts:
        lengths = policy.multiples(part)
        assert 0.0 <= lengths <= LONGEST


@pytest.mark.parametrize(("size", "most"), [(25, MOST_PREDICTED), (24, MOST_UNCORRECTED)])
def test_with_few_hidden_weights_auto_makes_no_more_predicted_steps_than_the_default(size, most):
    parts = [hidden(size), other(100 - size)]
    policy = make(parts, 100, advances=[MOST, MOST], speedup="auto")
    assert policy.per_full_step == most


def test_after_targets_have_changed_auto_makes_no_more_than_the_default_and_says_so():
    policy = make([hidden(100)], 100, advances=[MOST], speedup="auto")
    policy.limits.start = policy.limits.mean = 1.0
    policy.limits.least = 0.0
    policy.limits.back = RETURN - 1
    seen = [policy.learn(Outcome(k, [1.0], loss=1.0)) for k in (1, 2)]
    assert [CHANGED in events for events in seen] == [True, False]
    assert policy.per_full_step == MOST_UNCORRECTED


lengths = st.one_of(st.integers(0, 50), st.floats(0, 0.9))


@given(
    total=st.integers(1, 300),
    warmup=lengths,
    cooldown=lengths,
    numbers=st.lists(st.floats(0.0, MOST), min_size=1),
    seed=st.randoms(use_true_random=False),
)
def test_a_run_of_any_pace_never_overshoots(total, warmup, cooldown, numbers, seed):
    part = hidden(100, gated=False)
    settings = {"warmup_steps": warmup, "cooldown_steps": cooldown, "speedup": "auto"}
    policy = make([part], 100, advances=[1.0], total=total, **settings)
    steps = ""
    for taken in range(total):
        count = policy.due(len(steps))
        stands = seed.random() < 0.7
        steps += "P" * (count if stands else 0) + "F"
        policy.confidences[part.key].advance = numbers[taken % len(numbers)]
        policy.count_full_step()
        if len(steps) >= total:
            break
    assert len(steps) == total
    assert "P" not in steps[: policy.schedule.warmup]
    assert "P" not in steps[total - policy.schedule.cooldown :]


def test_fractions_of_predicted_steps_add_up():
    policy = make([hidden(100)], 100, advances=[0.3], speedup="auto", total=10**6, warmup_steps=0)
    made = 0
    for position in range(50, 1050):
        made += policy.due(position)
        policy.count_full_step()
    assert made == pytest.approx(300, abs=1)


GOOD = Slopes(-2.0, 4.0, -3.0, 9.0)


def shown(step=1, **changes):
    return Outcome(step, [1.0], loss=1.0, predicted=1, slopes=GOOD, **changes)


@pytest.mark.parametrize(("advance", "event"), [(0.0, ENDED), (1.0, RESTARTED)])
def test_a_failed_test_ends_predicted_steps_unless_forecasts_had_lasted(advance, event):
    policy = make([hidden(100)], 100, advances=[advance])
    policy.evidence = Evidence(verdicts=9, wealth=1e9)
    assert event in policy.learn(shown())
    assert policy.pausing(99) is (event == ENDED)
    assert not any(each.advance for each in policy.confidences.values())


@pytest.mark.parametrize(
    ("norm", "loss", "words"),
    [
        (1.0, 1.0, ""),
        (1.0, None, ""),
        (math.nan, 1.0, "not finite"),
        (11.0, 1.0, "many times its usual length"),
        (1.0, 6.0, "far above its mean"),
        (1.0, math.inf, "loss of a verifying step was not finite"),
    ],
)
def test_predicted_steps_are_undone_with_their_cause(norm, loss, words):
    policy = PredictingPolicy(HybridConfig(total_steps=100))
    policy.limits.norms = [Baseline(READINGS, mean=math.log(0.1))]
    policy.limits.loss = Baseline(READINGS, mean=1.25)
    found = policy.cause(0, norm, loss, finite=True)
    assert words in found
    assert bool(found) == bool(words)
    assert policy.cause(0, norm, loss, finite=False)


def test_a_loss_that_is_not_watched_has_no_limit_after_a_resume_either():
    watching = make([hidden(9)], 9)
    for step in range(1, READINGS + 1):
        watching.learn(Outcome(step, [1.0], loss=1.0))
    other = make([hidden(9)], 9, watch_loss=False)
    other.load_state_dict(watching.state_dict())
    assert watching.cause(0, 1.0, 90.0, finite=True) and not other.cause(0, 1.0, 90.0, finite=True)
