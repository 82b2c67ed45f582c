"""The plan of predicted steps by arithmetic: that of the clock, for runs of any length."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid_predict import ConfigError, HybridConfig
from hybrid_predict.accounts.clock import Clock
from hybrid_predict.functional import init, predict
from hybrid_predict.functional.schedule import MOST_STEPS, due

WEIGHTS = {"a": np.ones((3, 2))}
SETTINGS: list[dict[str, Any]] = [
    *({"speedup": s} for s in (1.001, 1.25, 1.5, 1.9, 2, 2.5, 3.7, 1000)),
    *({"full_steps": f, "predict_steps": p} for f, p in ((1, 1), (2, 1), (3, 7), (1, 2**33))),
    {"full_steps": 2**40, "predict_steps": 1},
]
LENGTHS = [{}, {"warmup_steps": 0.3, "cooldown_steps": 0.5}, {"warmup_steps": 7}]


def positions(total: int) -> list[int]:
    """All positions of a short run, some of a long one."""
    if total < 200:
        return list(range(total + 1))
    drawn = [random.Random(total).randrange(total) for _ in range(60)]
    return [*range(10), *drawn, *range(total - 10, total + 1)]


def by_definition(clock: Clock, step: int) -> bool:
    """Whether a step is planned as a predicted one."""
    i, between, planned = step - clock.warmup, clock.between, clock.planned
    if not 0 <= i < between:
        return False
    full, predicted = clock._pattern
    if full:
        return i % (full + predicted) >= full
    return (i + 1) * planned // between > i * planned // between


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("total", [1, 2, 3, 50, 97])
def test_the_clock_counts_what_is_planned_right_before_a_step(
    total: int, setting: dict[str, Any], lengths: dict[str, Any]
) -> None:
    clock = Clock(HybridConfig(total_steps=total, **setting, **lengths))
    for clock.steps in positions(total):
        count = 0
        while by_definition(clock, clock.steps + count):
            count += 1
        assert clock.due == count


def compare(config: HybridConfig, convert: Any = np.asarray) -> None:
    """The functional form plans what the clock plans."""
    momentum = {"hidden": "momentum"}
    config = HybridConfig(**{**vars(config), "predictors": momentum})
    state = init({name: convert(x) for name, x in WEIGHTS.items()}, config)
    theirs = Clock(config, 2 * 20)
    assert (int(state.clock.total), int(state.clock.warmup)) == (theirs.total, theirs.warmup)
    for theirs.steps in positions(config.total_steps or 0):
        steps = 0 * state.clock.steps + theirs.steps
        assert int(due(state.clock._replace(steps=steps), config)) == theirs.due


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("total", [1, 60, 150, 10**6 + 3, 2**30 + 1, MOST_STEPS])
def test_the_functional_form_plans_what_the_clock_plans(
    total: int, setting: dict[str, Any], lengths: dict[str, Any]
) -> None:
    compare(HybridConfig(total_steps=total, **setting, **lengths))


@given(
    total=st.integers(1, MOST_STEPS),
    speedup=st.floats(1, 50, exclude_min=True),
    warmup=st.floats(0, 0.9),
)
@example(total=MOST_STEPS, speedup=1.5, warmup=0.0)
def test_it_does_so_for_any_length(total: int, speedup: float, warmup: float) -> None:
    compare(HybridConfig(total_steps=total, speedup=speedup, warmup_steps=warmup))


@pytest.mark.parametrize("total", [150, MOST_STEPS])
@pytest.mark.parametrize("setting", [{"speedup": 1.9}, {"full_steps": 3, "predict_steps": 7}])
def test_torch_does_so_too(total: int, setting: dict[str, Any]) -> None:
    pytest.importorskip("array_api_compat")
    compare(HybridConfig(total_steps=total, **setting), torch.asarray)


@pytest.mark.parametrize("setting", [{"speedup": 1.9}, {"full_steps": 3, "predict_steps": 7}])
def test_jitted_jax_does_so_too(setting: dict[str, Any]) -> None:
    jax = pytest.importorskip("jax")
    config = HybridConfig(total_steps=MOST_STEPS, **setting)
    clock = init({"a": jax.numpy.ones((3, 2))}, config).clock
    found = jax.jit(lambda clock: due(clock, config))
    theirs = Clock(config, 2 * 20)
    for theirs.steps in positions(config.total_steps or 0):
        assert int(found(clock._replace(steps=jax.numpy.int32(theirs.steps)))) == theirs.due


def test_a_long_run_begins_at_once_and_one_that_is_too_long_is_refused() -> None:
    config = HybridConfig(total_steps=MOST_STEPS)
    state = init(WEIGHTS, config)
    assert sum(np.asarray(x).nbytes for x in state.clock) < 1000
    moved, _ = predict(state, WEIGHTS, 0.1, config=config)
    np.testing.assert_array_equal(moved["a"], WEIGHTS["a"])
    with pytest.raises(ConfigError, match=f"total_steps: expected at most {MOST_STEPS} steps"):
        init(WEIGHTS, HybridConfig(total_steps=MOST_STEPS + 1))
