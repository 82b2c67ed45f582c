"""The same run in the engine and in the functional form, for every array library."""

from __future__ import annotations

from typing import Any

import functional_loops
import numpy as np
import pytest
from functional_loops import (
    KINDS,
    batch,
    in_functions,
    in_the_engine,
    loss_and_gradients,
    same_runs,
    weights,
)

from hybrid_predict import HybridConfig, MomentumPredictor, SpectralUpdate
from hybrid_predict.functional import correct, predict, verify


def config(total: int = 90, **settings: Any) -> HybridConfig:
    return HybridConfig(**{"total_steps": total, "kinds": KINDS, "max_overhead": 1e9, **settings})


UNGATED = {"hidden": MomentumPredictor(gated=False)}
AUTO = {"speedup": "auto", "total": 240}
SETTINGS: dict[str, dict[str, Any]] = {
    "corrected": {"speedup": 1},
    "a share": {"predictors": UNGATED, "updates": {"hidden": SpectralUpdate(share=0.4)}},
    "vectors too": {"predictors": {**UNGATED, "vector": MomentumPredictor(gated=False)}},
    "no root": {"speedup": 1, "updates": {"hidden": SpectralUpdate(longest=0)}},
    "gated": {},
    "backwards, not corrected": {
        "predictors": {"hidden": MomentumPredictor(coefficient=-4.0, gated=False)},
        "updates": {},
    },
    "lasting": {"total": 240},
    "auto": AUTO,
}

COMPILED = ("no root", "vectors too", "gated", "auto")
"""Cases of JAX: compiling takes seconds."""

CASES = [
    *(("numpy", case) for case in SETTINGS),
    *(pytest.param("jax", case, marks=pytest.mark.slow) for case in COMPILED),
]


@pytest.mark.parametrize(("library", "case"), CASES)
def test_every_library_has_the_engine_s_numbers(
    case: str, tools: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, paced = config(**SETTINGS[case]), case.startswith("auto")
    lasting = paced or case.startswith("lasting")
    if lasting:
        monkeypatch.setattr(functional_loops, "RATE", 1e-4)  # far too small
    ours, theirs = in_functions(settings, **tools), in_the_engine(settings)
    # Weights depend on sums over windows, which libraries round in different orders.
    same_runs(ours, theirs, atol=1e-9 if lasting or case == "gated" else 1e-10)
    assert ours.steps == theirs.steps == settings.total_steps
    assert (sum(ours.predicted) > 0) == (case not in ("corrected", "no root"))
    assert (sum(ours.predicted) == 6) == case.startswith("backwards")  # ended by their verdicts
    assert (max(ours.predicted) > 1) == paced
    assert not lasting or any(each.advance for each in ours.state.policy.confidences.values())
    assert (ours.evidence.verdicts, ours.evidence.ended) == (
        theirs.evidence.verdicts, theirs.evidence.ended,
    )  # fmt: skip
    assert ours.evidence.wealth == pytest.approx(theirs.evidence.wealth, rel=1e-9)


@pytest.mark.parametrize("library", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_what_cannot_stand_is_undone_as_in_the_engine(tools: dict[str, Any]) -> None:
    run = config(60, predictors=UNGATED)
    full = in_the_engine(run).predicted
    spoiled = [k for k, count in enumerate(full) if count][3]
    ours, theirs = in_functions(run, spoiled=spoiled, **tools), in_the_engine(run, spoiled)
    same_runs(ours, theirs)
    assert ours.undone == full[spoiled] > 0
    assert ours.predicted != full


def test_calls_after_the_run_s_last_step_leave_the_update_and_the_clock_alone() -> None:
    state = in_functions(config(predictors=UNGATED)).state
    w: dict[str, Any] = weights()
    for _ in range(3):
        moved, state = predict(state, w, 0.1)
        _, gradients = loss_and_gradients(moved, *batch(0))
        _, state = verify(state, gradients)
        after = {name: x - 0.1 * gradients[name] for name, x in moved.items()}
        w, state = correct(state, gradients, moved, after, 0.1)
        assert all(np.array_equal(w[name], after[name]) for name in w)
        assert (state.clock.steps, state.clock.ticks) == (90, 0)


@pytest.mark.parametrize("library", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_run_resumes_from_its_state(
    tools: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional_loops, "RATE", 1e-4)  # far too small
    whole, resumed = (in_functions(config(**AUTO), **tools, pickled=each) for each in (False, True))
    assert sum(whole.predicted) > 0
    same_runs(resumed, whole, atol=0)
