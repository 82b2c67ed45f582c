"""Corrections stay within ``max_overhead`` of a full step whose operations the caller states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from functional_loops import KINDS, in_functions, in_the_engine, same_runs, weights

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import correct, init
from hybrid_predict.policy import budget

UNGATED = {"hidden": MomentumPredictor(gated=False)}


@pytest.fixture(autouse=True)
def every_operation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SMALLEST_STEP", 0.0)


def test_matrices_are_corrected_as_often_as_in_the_engine() -> None:
    settings = HybridConfig(total_steps=40, kinds=KINDS, max_overhead=0.27, predictors=UNGATED)
    theirs = in_the_engine(settings)
    assert theirs.operations and theirs.period == 3
    same_runs(in_functions(settings, step_operations=theirs.operations), theirs)


@pytest.mark.parametrize("limit", [0.01, 0.0])
def test_a_budget_for_no_correction_is_refused(limit: float) -> None:
    settings = HybridConfig(total_steps=40, kinds=KINDS, max_overhead=limit)
    with pytest.raises(ConfigError, match=r"^max_overhead: .*max_overhead=.*updates=\{\}"):
        init(weights(), settings, step_operations=1e4)


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_matrices_take_turns_within_a_period(tools: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    w: Any = {name: tools["load"](generator.normal(size=(16, 16))) for name in "abc"}
    config = HybridConfig(
        speedup=1, total_steps=100, kinds={"*": "hidden"}, cooldown_steps=0, max_overhead=0.1
    )
    work = sum(plan.work(3) for plan in init(w, config).plans.arrays)
    state = init(w, config, step_operations=10.001 * work / 3)  # of which a tenth may be added
    corrected = []
    for _ in range(6):
        after = {name: 0.99 * x for name, x in w.items()}
        new, state = correct(state, w, w, after, 0.1)
        corrected.append({name for name in w if not np.array_equal(new[name], after[name])})
    assert set.union(*corrected[:3]) == set("abc") and corrected[3:] == corrected[:3]
    assert all(len(names) == 1 for names in corrected)
