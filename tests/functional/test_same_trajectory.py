"""The same run in the engine and in the functional form, for every array library."""

from __future__ import annotations

import logging
from typing import Any

import functional_loops
import numpy as np
import pytest
from functional_loops import (
    KINDS,
    Run,
    batch,
    in_functions,
    in_the_engine,
    loss_and_gradients,
    weights,
)

from hybrid_predict import FittedPredictor, HybridConfig, MomentumPredictor, SpectralUpdate
from hybrid_predict.functional import correct, predict, verify

LIBRARIES = ("numpy", "jax")


def config(**settings: Any) -> HybridConfig:
    return HybridConfig(total_steps=90, kinds=KINDS, max_overhead=1e9, **settings)


UNGATED = {"hidden": MomentumPredictor(gated=False)}
SETTINGS = {
    "corrected": {"speedup": 1},
    "predicted": {"updates": {}, "predictors": UNGATED},
    "both": {"predictors": UNGATED},
    "a share": {"predictors": UNGATED, "updates": {"hidden": SpectralUpdate(share=0.4)}},
    "vectors too": {"predictors": {**UNGATED, "vector": MomentumPredictor(gated=False)}},
    "by pattern": {"predictors": UNGATED, "speedup": 1.5, "cooldown_steps": 11},
    "fitted": {"predictors": {"hidden": FittedPredictor(gated=False)}},
    "whitened": {"speedup": 1, "updates": {"hidden": "whitened"}},
    "gated": {},
    "backwards": {"predictors": {"hidden": MomentumPredictor(coefficient=-0.5, gated=False)}},
    "backwards, not corrected": {
        "predictors": {"hidden": MomentumPredictor(coefficient=-4.0, gated=False)},
        "updates": {},
    },
}


def run(library: str, settings: HybridConfig, spoiled: int | None = None) -> Run:
    if library == "jax":
        jax = pytest.importorskip("jax")
        return in_functions(settings, jax.numpy.asarray, spoiled, jax.jit)
    return in_functions(settings, np.asarray, spoiled)


@pytest.fixture
def in_64_bits(library: str) -> Any:
    if library != "jax":
        yield
        return
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield


WINDOWS = ("fitted", "gated")
"""Cases whose weights depend on windows, whose sums libraries round in different orders."""

COMPILED = ("both", "whitened", "vectors too", "gated", "backwards")
"""Cases of JAX: compiling takes seconds."""

CASES = [
    pytest.param(
        library,
        case,
        marks=pytest.mark.slow if library == "jax" and case != "both" else (),
    )
    for library in LIBRARIES
    for case in (COMPILED if library == "jax" else SETTINGS)
]


@pytest.mark.usefixtures("in_64_bits")
@pytest.mark.parametrize(("library", "case"), CASES)
def test_every_library_has_the_engine_s_numbers(library: str, case: str) -> None:
    settings = config(**SETTINGS[case])
    ours, theirs = run(library, settings), in_the_engine(settings)
    atol = 1e-9 if case in WINDOWS else 1e-10
    assert ours.predicted == theirs.predicted
    assert ours.steps == theirs.steps == 90
    assert (sum(ours.predicted) > 0) == (case not in ("corrected", "whitened"))
    assert (sum(ours.predicted) == 6) == case.startswith("backwards")  # ended by their verdicts
    np.testing.assert_allclose([float(x) for x in ours.evidence], theirs.evidence, rtol=1e-9)
    for name, wanted in theirs.weights.items():
        np.testing.assert_allclose(ours.weights[name], wanted, rtol=0, atol=atol)


@pytest.mark.usefixtures("in_64_bits")
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_cannot_stand_is_undone_as_in_the_engine(library: str) -> None:
    settings = config(predictors=UNGATED)
    full = in_the_engine(settings)
    spoiled = [k for k, count in enumerate(full.predicted) if count][3]
    ours = run(library, settings, spoiled)
    theirs = in_the_engine(settings, spoiled)
    assert ours.undone == theirs.undone == 1
    assert ours.predicted == theirs.predicted != full.predicted
    for name, wanted in theirs.weights.items():
        np.testing.assert_allclose(ours.weights[name], wanted, rtol=0, atol=1e-10)


def test_calls_after_the_run_s_last_step_leave_the_update_and_the_clock_alone() -> None:
    settings = config(predictors=UNGATED)
    state = in_functions(settings).state
    w = {name: np.asarray(x) for name, x in weights().items()}
    for _ in range(3):
        moved, state = predict(state, w, 0.1, config=settings)
        _, gradients = loss_and_gradients(moved, *batch(0))
        _, state = verify(state, gradients)
        after = {name: x - 0.1 * gradients[name] for name, x in moved.items()}
        w, state = correct(state, gradients, moved, after, 0.1, config=settings)
        assert all(np.array_equal(w[name], after[name]) for name in w)
        assert (int(state.clock.steps), int(state.clock.ticks)) == (90, 0)


@pytest.mark.parametrize(
    ("kinds", "moves"),
    [
        ({"[02].weight": "head", "4.weight": "hidden"}, False),
        ({"[02].weight": "embedding", "4.weight": "hidden"}, True),
    ],
    ids=["24 of 185 weights", "24 of 45 outside tables"],
)
def test_few_weights_alone_are_not_predicted_in_either(
    kinds: dict[str, str], moves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = HybridConfig(
        total_steps=120, kinds=kinds, max_overhead=1e9, predictors={"hidden": "momentum"}
    )
    caplog.set_level(logging.INFO)
    theirs, ours = in_the_engine(settings), in_functions(settings)
    assert any(ours.predicted) is moves
    assert ours.predicted == theirs.predicted
    assert caplog.text.count("would move less than a quarter") == (0 if moves else 2)


def test_a_negative_rate_up_the_negative_loss_goes_down_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functional_loops, "DECAY", 0.0)
    settings = HybridConfig(total_steps=60, kinds=KINDS, max_overhead=1e9, predictors=UNGATED)
    down = in_functions(settings)

    def negated(*given: Any) -> Any:
        loss, gradients = loss_and_gradients(*given)
        return loss, {name: -g for name, g in gradients.items()}

    monkeypatch.setattr(functional_loops, "RATE", -functional_loops.RATE)
    monkeypatch.setattr(functional_loops, "loss_and_gradients", negated)
    up = in_functions(settings)
    assert up.predicted == down.predicted and sum(up.predicted) > 0
    for name, wanted in down.weights.items():
        np.testing.assert_array_equal(up.weights[name], wanted)
