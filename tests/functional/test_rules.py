"""The rules decide alike on plain numbers, NumPy arrays, and arrays that JAX traces."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid_predict import ConfigError, HybridConfig
from hybrid_predict.functional import init, predict
from hybrid_predict.functional.initial import MOST_STEPS
from hybrid_predict.rules.limits import (
    Limits,
    alarmed,
    first_limits,
    learned,
    loss_limit,
    norm_limits,
    pausing,
    risen,
)
from hybrid_predict.rules.schedule import due, schedule
from hybrid_predict.rules.skill import Pooled, Skill, add_window, enough, lower

WEIGHTS = {"a": np.ones((3, 2))}
SETTINGS: list[dict[str, Any]] = [
    *({"speedup": s} for s in (1.001, 1.5, 1.9, 2, 3.7, 1000)),
    *({"full_steps": f, "predict_steps": p} for f, p in ((2, 1), (3, 7), (1, 2**33), (2**40, 1))),
]


def positions(total: int) -> list[int]:
    """All positions of a short run, some of a long one."""
    if total < 100:
        return list(range(total + 1))
    drawn = [random.Random(total).randrange(total) for _ in range(20)]
    return [*range(5), *drawn, *range(total - 5, total + 1)]


def compare(config: HybridConfig) -> None:
    """The state of a run has the schedule of plain numbers, in 32 bits."""
    config = HybridConfig(**{**vars(config), "predictors": {"hidden": "momentum"}})
    plain, arrays = schedule(config, 2 * 20), init(WEIGHTS, config).schedule
    assert {x.dtype for x in arrays} == {np.dtype(np.int32)}
    with np.errstate(over="ignore"):
        for step in positions(plain.total):
            assert int(due(arrays, np.asarray(step, np.int32))) == due(plain, step)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("total", [1, 60, 150, 2**30 + 1, MOST_STEPS])
def test_runs_of_any_length_are_planned_in_32_bits(total: int, setting: dict[str, Any]) -> None:
    compare(HybridConfig(total_steps=total, warmup_steps=7, **setting))


@given(
    total=st.integers(1, MOST_STEPS),
    speedup=st.floats(1, 50, exclude_min=True),
    warmup=st.floats(0, 0.9),
)
@example(total=MOST_STEPS, speedup=1.5, warmup=0.0)
def test_runs_of_any_speedup_are(total: int, speedup: float, warmup: float) -> None:
    compare(HybridConfig(total_steps=total, speedup=speedup, warmup_steps=warmup))


@pytest.mark.parametrize("setting", [{"speedup": 1.9}, {"full_steps": 3, "predict_steps": 7}])
def test_a_traced_schedule_plans_the_same(setting: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax")
    config = HybridConfig(total_steps=MOST_STEPS, **setting)
    state, plain = init({"a": jax.numpy.ones((3, 2))}, config), schedule(config, 2 * 20)
    steps = positions(MOST_STEPS)
    planned = jax.jit(jax.vmap(lambda step: due(state.schedule, step)))(np.array(steps, np.int32))
    assert planned.tolist() == [due(plain, step) for step in steps]


def test_a_run_that_is_too_long_is_refused() -> None:
    config = HybridConfig(total_steps=MOST_STEPS)
    moved, _ = predict(init(WEIGHTS, config), WEIGHTS, 0.1, config=config)
    np.testing.assert_array_equal(moved["a"], WEIGHTS["a"])
    with pytest.raises(ConfigError, match=f"total_steps: expected at most {MOST_STEPS} steps"):
        init(WEIGHTS, HybridConfig(total_steps=MOST_STEPS + 1))


LOSSES = {
    "falling": [3.0 / (1 + k) for k in range(60)],
    "alarms": [2.0 + math.sin(k) for k in range(20)] + [math.nan, 2.0, 1e9, 2.0] * 12,
    "rising": [1.0 + 0.05 * k for k in range(80)],
    "calm after alarms": [math.inf, *[1.0] * 520, math.inf],
}


def numbers(tree: Any) -> list[float]:
    leaves = [numbers(x) if isinstance(x, tuple) else [float(x)] for x in tree]
    return [x for each in leaves for x in each]


@pytest.mark.parametrize("case", LOSSES)
def test_limits_of_arrays_are_those_of_numbers(case: str) -> None:
    ours: Limits = init(WEIGHTS, HybridConfig(speedup=1)).limits
    theirs, alarms = first_limits(1), 0
    for step, loss in enumerate(LOSSES[case], start=1):
        norm, at = 0.5 + 0.1 * math.cos(step) if step % 7 else 0.0, np.asarray(step, np.int32)
        limit = loss_limit(theirs)
        assert float(loss_limit(ours)) == pytest.approx(limit)
        assert float(norm_limits(ours)[0]) == pytest.approx(norm_limits(theirs)[0])
        assert bool(pausing(ours, at)) == pausing(theirs, step)
        if (math.isfinite(loss) and loss <= limit) or math.isnan(loss):
            values = np.asarray(loss), (np.asarray(norm),), np.asarray(step < 10)
            ours = learned(ours, *values)
            theirs = learned(theirs, loss, (norm,), step < 10)
        else:
            ours, theirs, alarms = alarmed(ours, at), alarmed(theirs, step), alarms + 1
        np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=1e-12)
    assert bool(alarms) == ("alarms" in case)
    assert bool(risen(ours)) == risen(theirs) == (case == "rising")


@pytest.mark.parametrize("sign", [1.0, -1.0, 0.0])
def test_skill_of_arrays_is_that_of_numbers(sign: float) -> None:
    generator = np.random.default_rng(5)
    ours, theirs = Skill(*(np.asarray(x) for x in Skill())), Skill()
    for _ in range(20):
        moved, forecast, drift, following = generator.uniform(1.0, 2.0, 4).tolist()
        window = Pooled(0.8 * sign, moved, forecast, drift, 0.01, following)
        ours = add_window(ours, Pooled(*map(np.asarray, window)))
        theirs = add_window(theirs, window)
        np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=1e-12)
        assert float(lower(ours)) == pytest.approx(lower(theirs))
    assert bool(enough(ours)) == bool(enough(theirs)) == (sign > 0)
