"""Skill, fitted coefficients, limits and alarms are those of the engine's own classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hybrid_predict import FittedPredictor
from hybrid_predict.forecast.predictors import PredictorState
from hybrid_predict.forecast.window import Reading as EngineReading
from hybrid_predict.functional import baselines
from hybrid_predict.functional.state import Baseline, Monitor, Skill
from hybrid_predict.functional.windows import Reading, add_skill, enough, fit, lower
from hybrid_predict.rules.skill import Skill as EngineSkill
from hybrid_predict.verify.monitor import Monitor as EngineMonitor

STEPS = 20


def zero() -> Any:
    return np.asarray(0.0)


def none() -> Any:
    return np.asarray(0, dtype=np.int32)


def readings(directions: int, count: int = 6) -> list[EngineReading]:
    generator, found = np.random.default_rng(5), []
    for number in range(count):
        each = generator.normal(size=(3, 2 + directions, 7))
        each[:, 0] += 3 * each[:, 1]
        gram = each @ each.transpose(0, 2, 1)
        chance, drift = generator.uniform(0.1, 2.0, size=(2, 3))
        names = ("a", "b", "c")
        steps = STEPS if number else STEPS // 2
        found.append(EngineReading("hidden", 0, names, steps, gram, chance, drift))
    return found


def as_arrays(one: EngineReading, full: bool = True) -> Reading:
    steps, square = np.asarray(float(one.steps)), np.asarray(one.square)
    return Reading(np.asarray(full), one.gram, one.chance, one.drift, steps, square)


@pytest.mark.parametrize(
    "predictor",
    [
        FittedPredictor(),
        FittedPredictor(ridge=0.0, memory=0.5),
        FittedPredictor(decays=(0.9, 0.5), last=True, ridge=0.3),
    ],
    ids=["default", "no ridge", "three directions"],
)
def test_coefficients_are_fitted_as_in_the_engine(predictor: FittedPredictor) -> None:
    count = len(predictor.decays) + predictor.last
    state = PredictorState(("a", "b", "c"))
    factors = np.zeros((3, count))
    sums = np.zeros((3, count, count + 1))
    for one in readings(count):
        predictor.fit(state, one)
        factors, sums, square = fit(predictor, factors, sums, as_arrays(one))
        assert float(square) == pytest.approx(predictor.square(state, one))
        same = fit(predictor, factors, sums, as_arrays(one, full=False))
        assert np.array_equal(same[0], factors) and np.array_equal(same[1], sums)
        wanted = [state.numbers[name][:count] for name in ("a", "b", "c")]
        np.testing.assert_allclose(factors, wanted, rtol=1e-9)


def test_coefficients_stay_where_a_window_is_not_finite() -> None:
    one = readings(1)[0]
    one.gram[1, 0, 2] = math.nan
    factors, sums = np.full((3, 1), 0.5), np.zeros((3, 1, 2))
    found = fit(FittedPredictor(), factors, sums, as_arrays(one))
    assert np.array_equal(found[0], factors) and np.array_equal(found[1], sums)


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_skill_is_that_of_the_engine(sign: float) -> None:
    ours, theirs = Skill(none(), *(zero() for _ in range(6))), EngineSkill()
    for one in readings(1, count=20):
        one.gram[:, 0, 1:] *= sign
        ours, before = add_skill(ours, [as_arrays(one), as_arrays(one, full=False)]), ours
        theirs.add([one], [one.square])
        unread = add_skill(before, [as_arrays(one, full=False)])
        assert [float(x) for x in unread] == [float(x) for x in before]
        np.testing.assert_allclose([float(x) for x in ours], list(vars(theirs).values()))
        np.testing.assert_allclose(float(lower(ours)), theirs.lower)
        assert bool(enough(ours)) == theirs.enough
    assert bool(enough(ours)) == (sign > 0)


LOSSES = {
    "falling": [3.0 / (1 + k) for k in range(60)],
    "alarms": [2.0 + math.sin(k) for k in range(20)] + [math.nan, 2.0, 1e9, 2.0] * 12,
    "rising": [1.0 + 0.05 * k for k in range(80)],
    "noise around zero": [math.sin(k * k) for k in range(400)],
    "calm after alarms": [math.inf, *[1.0] * 520, math.inf],
}


@pytest.mark.parametrize("case", LOSSES)
def test_limits_and_alarms_are_those_of_the_engine(case: str) -> None:
    both = [Baseline(zero(), zero(), none()) for _ in range(2)]
    unknown = np.asarray(math.nan)
    ours, theirs = Monitor(*both, unknown, unknown, *(none() for _ in range(4))), EngineMonitor(1)
    alarms = 0
    for step, loss in enumerate(LOSSES[case], start=1):
        norm = 0.5 + 0.1 * math.cos(step) if step % 7 else 0.0
        limits = [float(x) for x in baselines.limits(ours)]
        np.testing.assert_allclose(limits, [theirs.loss_limit, theirs.norm_limit(0)])
        assert bool(baselines.pausing(ours, np.asarray(step))) == theirs.pausing(step)
        if not loss <= theirs.loss_limit or math.isinf(loss):
            alarms += 1
            theirs.alarm(step)
            ours = baselines.alarm(ours, np.asarray(step))
        else:
            theirs.add(loss, [norm], warmup=step < 10)
            values = np.asarray(loss), np.asarray(norm), np.asarray(step < 10)
            ours = baselines.learn(ours, *values)
        assert bool(baselines.risen(ours)) == theirs.risen
        assert bool(baselines.exhausted(ours)) == theirs.exhausted
        counts = {name: int(getattr(ours, name)) for name in theirs.counts}
        assert counts == theirs.counts
    assert bool(alarms) == ("alarms" in case)
    assert theirs.risen == (case == "rising")
