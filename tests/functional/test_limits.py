"""Corrections stay within ``max_overhead`` of a full step whose operations the caller states."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
from functional_loops import KINDS, in_functions, in_the_engine, same_runs

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.functional import correct, init
from hybrid_predict.functional.plan import make_plans
from hybrid_predict.policy import budget

UNGATED = {"hidden": MomentumPredictor(gated=False)}


@pytest.fixture(autouse=True)
def every_operation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SMALLEST_STEP", 0.0)


@pytest.mark.parametrize(("limit", "period"), [(0.1, None), (0.27, 3), (0.6, 1)])
def test_matrices_are_corrected_as_often_as_in_the_engine(limit: float, period: int | None) -> None:
    settings = HybridConfig(total_steps=40, kinds=KINDS, max_overhead=limit, predictors=UNGATED)
    theirs = in_the_engine(settings)
    assert theirs.operations and theirs.period == period
    same_runs(in_functions(settings, step_operations=theirs.operations), theirs)


def wide() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {"hidden": generator.normal(size=(48, 48)), "head": generator.normal(size=(2, 48))}


@pytest.mark.parametrize(
    ("settings", "arrays", "warned"),
    [
        ({"total_steps": 90}, set(), True),
        ({"total_steps": 90, "predictors": UNGATED}, {"hidden"}, False),
    ],
    ids=["gated", "not gated"],
)
def test_without_corrections_no_predicted_step_is_made_that_needs_skill(
    settings: dict[str, Any], arrays: set[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    w, config = wide(), HybridConfig(kinds={"head": "head"}, max_overhead=1e-9, **settings)
    with caplog.at_level(logging.INFO):
        state = init(w, config, step_operations=1e6)
    assert set(state.tensors) == arrays
    assert ("plain training" in caplog.text) is warned
    assert ("batches are too small" in caplog.text) is warned
    assert not any(tensor.memory for tensor in state.tensors.values())
    after = {name: 0.99 * x for name, x in w.items()}
    new, _ = correct(state, w, w, after, 0.1, config=config, step_operations=1e6)
    assert all(np.array_equal(new[name], after[name]) for name in w)


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_matrices_take_turns_within_a_period(tools: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    w: Any = {name: tools["load"](generator.normal(size=(16, 16))) for name in "abc"}
    config = HybridConfig(
        speedup=1, total_steps=100, kinds={"*": "hidden"}, cooldown_steps=0, max_overhead=0.1
    )
    operations = 10.001 * make_plans(w, config).operations(3)  # of which a tenth may be added
    state = init(w, config, step_operations=operations)
    call: Any = partial(correct, learning_rates=0.1, config=config, step_operations=operations)
    corrected = []
    for _ in range(6):
        after = {name: 0.99 * x for name, x in w.items()}
        new, state = call(state, w, w, after)
        corrected.append({name for name in w if not np.array_equal(new[name], after[name])})
    assert set.union(*corrected[:3]) == set("abc") and corrected[3:] == corrected[:3]
    assert all(len(names) == 1 for names in corrected)
